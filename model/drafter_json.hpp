// The text of a drafter's config.json in the two published forms (dflash.md 3.1, 3.4).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/drafter_config.hpp"
#include "model/drafter_form.hpp"

namespace dflash {

/// What a drafter's folder says beside its own shape. Empty fields are written as null (token ids)
/// or left out (hash).
struct drafter_extras {
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;  // one id is written as a number, several as a list
  std::optional<int64_t> pad;
  std::string target_hash = {};  // content hash of the target; goes to the safetensors metadata
  /// Where loaders find the target, and its architectures ("LlamaForCausalLM"): speculators' form
  /// only, which cannot do without.
  std::string verifier = {};
  std::vector<std::string> verifier_architectures = {};
};

/// The same fields of an existing folder in either form, so that a copy keeps them. Throws
/// `dflash::error` naming file and key.
drafter_extras read_drafter_extras(const std::filesystem::path& folder);

/// Takes the target's folder as the verifier: its absolute path and its config.json's
/// architectures.
void set_verifier(drafter_extras& extras, const std::filesystem::path& target_folder);

/// Throws `dflash::error` (where = `where`) if this form cannot say what the drafter is: z-lab's
/// knows no draft vocabulary and needs the number of target layers; speculators' knows causality in
/// sliding layers only and needs the target's place.
void check_form_fits(drafter_form form,
                     const drafter_config& config,
                     const drafter_extras& extras,
                     const std::string& where);

/// `dtype` is the stored type of the weights (bf16 or fp32). Only plain RoPE is ever written:
/// m-rope and partial-rotary keys of a target must not leak into a drafter's configuration.
std::string drafter_config_json(drafter_form form,
                                const drafter_config& config,
                                at::ScalarType dtype,
                                const drafter_extras& extras = {});

}  // namespace dflash

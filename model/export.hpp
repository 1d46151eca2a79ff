#pragma once
// Writes a drafter as a z-lab folder (dflash.md 3.1): config.json and model.safetensors, the form
// that z-lab's `dflash`, vLLM, SGLang and llama.cpp's converter read. Checkpoints use it too.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/drafter.hpp"
#include "model/drafter_config.hpp"

namespace dflash {

/// What a z-lab config.json says beside the drafter's own shape. Empty fields are written as null
/// (token ids) or left out (hash).
struct zlab_extras {
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;  // one id is written as a number, several as a list
  std::optional<int64_t> pad;
  std::string target_hash = {};  // content hash of the target; goes to the safetensors metadata
};

/// The same fields of an existing z-lab folder, so that a copy keeps them. Throws `dflash::error`
/// naming file and key.
zlab_extras read_zlab_extras(const std::filesystem::path& folder);

/// The text of config.json. `dtype` is the stored type of the weights (bf16 or fp32).
/// Only plain RoPE is ever written: m-rope and partial-rotary keys of a target must not leak into a
/// drafter's configuration.
std::string zlab_config_json(const drafter_config& config,
                             at::ScalarType dtype,
                             const zlab_extras& extras = {});

/// Writes `folder` (config.json, model.safetensors with 3 + 11·L tensors, metadata format=pt)
/// through a temporary folder beside it and a rename, so that it is either complete or absent; an
/// existing z-lab folder (nothing in it but these files) is replaced. `weights` may be of any
/// floating dtype and is rounded to `dtype` (bf16 or fp32). Throws `dflash::error` if the folder
/// cannot be written, holds foreign files, or if a tensor's shape does not fit `config`. Blocks;
/// thread-safe for different folders.
void write_zlab_folder(const std::filesystem::path& folder,
                       const drafter_config& config,
                       const drafter_weights& weights,
                       at::ScalarType dtype = at::kBFloat16,
                       const zlab_extras& extras = {});

/// Writes the same two files straight into `folder`, which exists (a checkpoint under
/// construction).
void write_zlab_files(const std::filesystem::path& folder,
                      const drafter_config& config,
                      const drafter_weights& weights,
                      at::ScalarType dtype = at::kBFloat16,
                      const zlab_extras& extras = {});

}  // namespace dflash

#pragma once
// Writes a drafter's folder, config.json and model.safetensors, in z-lab's form (z-lab's `dflash`,
// vLLM, SGLang, llama.cpp's converter) or speculators' (speculators, vLLM). Checkpoints use it too.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <filesystem>

#include "model/drafter.hpp"
#include "model/drafter_config.hpp"
#include "model/drafter_form.hpp"
#include "model/drafter_json.hpp"

namespace dflash {

struct drafter_export {
  drafter_form form = drafter_form::zlab;
  at::ScalarType dtype = at::kBFloat16;  // or fp32: stored type of the weights
  drafter_extras extras = {};
  // [Vd, H], the target's rows of the draft vocabulary: needed where there is one, else not written
  // (loaders take embedding and head from the target).
  at::Tensor head = {};
};

/// Writes `folder` (config.json; model.safetensors with 3 + 11·L tensors, and d2t, t2d,
/// lm_head.weight for a draft vocabulary; metadata format=pt) through a temporary folder beside it
/// and a rename, so that it is either complete or absent; an existing drafter folder (nothing in it
/// but these files) is replaced. `weights` may be of any floating dtype and is rounded. Throws
/// `dflash::error` if the form cannot say what the drafter is (check_form_fits), or if the folder
/// cannot be written or holds foreign files. Blocks; thread-safe for different folders.
void write_drafter_folder(const std::filesystem::path& folder,
                          const drafter_config& config,
                          const drafter_weights& weights,
                          const drafter_export& how = {});

/// Writes the same two files straight into `folder`, which exists (a checkpoint under
/// construction).
void write_drafter_files(const std::filesystem::path& folder,
                         const drafter_config& config,
                         const drafter_weights& weights,
                         const drafter_export& how = {});

}  // namespace dflash

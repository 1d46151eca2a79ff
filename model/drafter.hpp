// The drafter's tensors, named as in z-lab's files (dflash.md 2.1), and the three ways to start
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "model/drafter_config.hpp"

namespace dflash {

class target;

struct drafter_layer {
  at::Tensor input_layernorm;           // [H]
  at::Tensor q_proj;                    // [nh hd, H]
  at::Tensor k_proj, v_proj;            // [nkv hd, H], context and block
  at::Tensor o_proj;                    // [H, nh hd]
  at::Tensor q_norm, k_norm;            // [hd]
  at::Tensor post_attention_layernorm;  // [H]
  at::Tensor gate_proj, up_proj;        // [I, H]
  at::Tensor down_proj;                 // [H, I]
};

struct drafter_weights {
  at::Tensor fc;           // [H, nT Ht], column blocks in the order of the taps
  at::Tensor hidden_norm;  // [H]
  at::Tensor norm;         // [H]
  std::vector<drafter_layer> layers;
};

// Names and tensors in one fixed order: fc, hidden_norm, norm, then layer by layer in the order of
// the struct. Flat buffers, checkpoints and exports use this order.
std::vector<std::pair<std::string, at::Tensor*>> named_tensors(drafter_weights& weights);
std::vector<std::pair<std::string, const at::Tensor*>> named_tensors(
    const drafter_weights& weights);

struct named_shape {
  std::string name;
  std::vector<int64_t> shape;
};
// The 3 + 11 L names and shapes, in the order of named_tensors.
std::vector<named_shape> drafter_tensor_shapes(const drafter_config& config);
int64_t drafter_parameter_count(const drafter_config& config);

// Weights as views of one new flat buffer (returned through `flat` where given), filled with NaN so
// that a tensor that nobody sets shows at the first forward pass.
drafter_weights make_drafter_weights(const drafter_config& config,
                                     at::ScalarType dtype,
                                     at::Tensor* flat = nullptr);
// Views of `flat` (drafter_parameter_count(config) elements), nothing copied.
drafter_weights view_drafter_weights(const drafter_config& config, const at::Tensor& flat);

// fp32 masters. how: "random" (matrices N(0, 0.02), norms 1, final norm at norm_scale of the
// target's), "target" (layers copied from the last ones in target_folder, q_norm = k_norm = 1, fc =
// identity on the last tap; final norm as for "random"), or the path of a drafter of the same
// shape, in either form (warm start). Random numbers are keyed by seed and tensor, so the same seed
// gives the same bits whatever the thread count.
drafter_weights init_drafter(const drafter_config& config,
                             const std::string& how,
                             const target& frozen,
                             uint64_t seed,
                             double norm_scale,
                             const std::filesystem::path& target_folder);

// A drafter as its folder holds it.
struct stored_drafter {
  drafter_config config;
  drafter_weights weights;  // fp32
  // Copies of the target's that the folder carries, or undefined. embedding [V, H] bf16: only
  // compared. head [Vd, H] fp32.
  at::Tensor embedding, head;
  std::string target_hash;  // content hash of the target that it was trained for; may be empty
};

// A drafter folder in z-lab's or speculators' form, strict: every tensor present with its shape,
// none besides but copies of what is the target's.
stored_drafter read_drafter(const std::filesystem::path& folder);
// The same; `out` receives its shape.
drafter_weights load_drafter(const std::filesystem::path& folder, drafter_config& out);
// The same for use with this target: refuses a drafter that does not fit it (check_drafter_fits),
// or that carries an embedding or a head which is not the target's.
drafter_weights load_drafter(const std::filesystem::path& folder,
                             const target& of,
                             drafter_config& out);

// What a run that starts from this drafter takes over from it: rotary base, norm epsilon and draft
// vocabulary. Throws dflash::error where shape or taps differ; differences that only change what it
// is trained for (block size, mask token, windows, causality) are logged.
drafter_config adopt_drafter(drafter_config config, const std::filesystem::path& folder);

}  // namespace dflash

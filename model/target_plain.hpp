// Steps of a target's layers in ATen operators, for capture and for the cached forward on any
// device; for the target's own files only. Results are new tensors; no step makes the host wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/target_config.hpp"
#include "model/target_layers.hpp"

namespace dflash::plain {

// Over the last dimension; weight [d] fp32. In x's dtype, computed in fp32.
at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps);

// x [n, heads, hd], rope [n, 1, dims]: cos, then sin.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& rope);

// [length, length], true where row i sees key j: i - window < j <= i.
at::Tensor window_mask(int64_t length, int64_t window, at::Device device);

// x [n, H] -> [n, H]
at::Tensor mix_dense(activation act, const mlp_weights& w, const at::Tensor& x);

// q, k [heads, n, dk], v [heads, n, dv], decay (log), beta [heads, n], all fp32 -> [heads, n, dv];
// n > 0. carried [heads, dk, dv]: the state before and, afterwards, behind the n tokens; null: the
// rule begins here, and nobody wants what it ends with.
at::Tensor chunked_delta_rule(at::Tensor q,
                              at::Tensor k,
                              at::Tensor v,
                              at::Tensor decay,
                              at::Tensor beta,
                              at::Tensor* carried = nullptr);

}  // namespace dflash::plain

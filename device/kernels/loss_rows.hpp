// One pass per row of logits: cross-entropy, forward KL to a teacher, rank of the label, and the
// gradient written over the logits. Rows are independent, so bits do not depend on threads. fp32
// arithmetic inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash::kernel {

struct loss_factors {
  double ce = 1, kl = 0;   // gradient = weight x (ce x d ce + kl x d kl)
  double temperature = 1;  // theta of kl: theta^2 KL(P^theta || Q^theta)
};

struct loss_row_results {
  std::vector<float> ce, kl;  // [n] unweighted; kl 0 without a teacher; 0 where the weight is 0
  std::vector<int32_t>
      rank;  // [n] logits that beat the label's (ties: lower ids beat it); -1 where weight is 0
};

// logits [n, V] fp32 or bf16, contiguous: overwritten by the gradient if `gradient` (zeros where
// the weight is 0), else left alone. teacher: [n, V] of the same dtype, or undefined. labels,
// weights: [n]. Formulas: dflash.md 4.6.
loss_row_results loss_rows(at::Tensor& logits,
                           const at::Tensor& teacher,
                           std::span<const int32_t> labels,
                           std::span<const float> weights,
                           const loss_factors& factors,
                           bool gradient);

// The same by ATen operators; returns the gradient through `gradient_out` if it is not null.
loss_row_results loss_rows_reference(const at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     std::span<const int32_t> labels,
                                     std::span<const float> weights,
                                     const loss_factors& factors,
                                     at::Tensor* gradient_out);

}  // namespace dflash::kernel

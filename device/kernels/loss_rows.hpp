// One pass per row of logits: all loss terms of dflash.md 4.6, rank of the label, and the gradient
// of their weighted sum written over the logits. Rows are independent, so bits do not depend on
// threads. fp32 arithmetic inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash::kernel {

// P: softmax of the teacher's logits u, Q: of the drafter's z. Formulas: docs/losses.md.
enum class loss_term : uint8_t { ce, kl, rkl, jsd, tv, nla, lk_hybrid, cap };
inline constexpr size_t loss_term_count = 8;
inline constexpr size_t index_of(loss_term t) {
  return static_cast<size_t>(t);
}
// Whether the term reads the teacher's logits.
inline constexpr bool needs_teacher(loss_term t) {
  return t != loss_term::ce && t != loss_term::cap;
}

// Least overlap of P and Q in nla: -log(max(overlap, this)), flat below.
inline constexpr double least_overlap = 1e-5;
// lk_hybrid = l kl + (1 - l) tv, l = exp(-this x overlap) held constant (arXiv 2602.23881).
inline constexpr double lk_eta = 3.0;

struct loss_factors {
  // gradient = weight x sum of factor x d term. Terms of factor 0 are not computed, ce always is.
  std::array<double, loss_term_count> factor = {1};
  double temperature = 1;  // theta of kl: theta^2 KL(P^theta || Q^theta)

  double of(loss_term t) const { return factor[index_of(t)]; }
  double& of(loss_term t) { return factor[index_of(t)]; }
  bool teacher() const {
    for (size_t i = 0; i < loss_term_count; ++i)
      if (factor[i] != 0 && needs_teacher(static_cast<loss_term>(i))) return true;
    return false;
  }
};

struct loss_row_results {
  // [term][n] unweighted; 0 where the term is not computed or the weight is 0. cap: the entropy of
  // rows whose argmax is the label, else 0.
  std::array<std::vector<float>, loss_term_count> term;
  std::vector<int32_t>
      rank;  // [n] logits that beat the label's (ties: lower ids beat it); -1 where weight is 0

  const std::vector<float>& of(loss_term t) const { return term[index_of(t)]; }
};

// logits [n, V] fp32 or bf16, contiguous: overwritten by the gradient if `gradient` (zeros where
// the weight is 0), else left alone. teacher: [n, V] of the same dtype, or undefined where no term
// needs it. labels, weights: [n].
loss_row_results loss_rows(at::Tensor& logits,
                           const at::Tensor& teacher,
                           std::span<const int32_t> labels,
                           std::span<const float> weights,
                           const loss_factors& factors,
                           bool gradient);

// What loss_rows finds, left where it was computed.
struct loss_row_tensors {
  std::array<at::Tensor, loss_term_count> term;  // [n], undefined where the term is not computed
  at::Tensor rank;                               // [n] int64
};
// The same by ATen operators on any device, without a wait of the host. labels [n] int64, weights
// [n] in the type of the computation. The gradient through `gradient_out` if it is not null.
loss_row_tensors loss_rows_on_device(const at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     const at::Tensor& labels,
                                     const at::Tensor& weights,
                                     const loss_factors& factors,
                                     at::Tensor* gradient_out);

// Its results on the host; returns the gradient through `gradient_out` if it is not null. fp64
// logits are computed in fp64.
loss_row_results loss_rows_reference(const at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     std::span<const int32_t> labels,
                                     std::span<const float> weights,
                                     const loss_factors& factors,
                                     at::Tensor* gradient_out);

}  // namespace dflash::kernel

// One pass per row of logits: all loss terms of dflash.md 4.6, rank of the label, and the gradient
// of their weighted sum written over the logits. Rows are independent, so bits do not depend on
// threads. fp32 arithmetic inside.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/kernels/loss_terms.hpp"

namespace dflash::kernel {

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
// The same on any device, without a wait of the host: by ATen operators, on a GPU by a kernel.
// labels [n] int64, weights [n] in the type of the computation.
loss_row_tensors loss_rows_on_device(at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     const at::Tensor& labels,
                                     const at::Tensor& weights,
                                     const loss_factors& factors,
                                     bool gradient);

// By ATen operators, with results on the host; returns the gradient through `gradient_out` if it is
// not null. fp64 logits are computed in fp64.
loss_row_results loss_rows_reference(const at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     std::span<const int32_t> labels,
                                     std::span<const float> weights,
                                     const loss_factors& factors,
                                     at::Tensor* gradient_out);

}  // namespace dflash::kernel

// Reductions between drafters of one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace dflash {

// out = ((parts[0] + parts[1]) + parts[2]) + ..., element by element in the order of ranks, so that
// every rank gets the same bits whatever arrived first. Same shapes, fp32, contiguous; `out` may
// not alias a part. One part: a copy. Parts may lie on other devices than `out`.
void sum_in_rank_order(std::span<const at::Tensor> parts, at::Tensor& out);

}  // namespace dflash

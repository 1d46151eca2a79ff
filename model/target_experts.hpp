// Mixture of experts, for both forms of a target's pass; for the target's own files only.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <vector>

#include "model/target_config.hpp"
#include "model/target_layers.hpp"

namespace dflash {

// Sum over the experts that each row of x [n, H] takes, by weight, in the order of the experts'
// numbers; `apply(mlp, rows)` computes one of them.
template <class Apply>
at::Tensor expert_sum(const expert_config& config,
                      const expert_weights& w,
                      const at::Tensor& x,
                      const Apply& apply) {
  const auto logits = at::linear(x, w.router);
  auto [weights, chosen] =
      at::topk(at::softmax(logits, -1, at::kFloat), config.per_token, -1, true, true);
  if (config.normalised) weights = weights / weights.sum({-1}, true);
  weights = weights.to(x.scalar_type());
  const auto experts = chosen.to(at::kCPU).contiguous();
  const auto* ids = experts.template const_data_ptr<int64_t>();
  // [E] places in `chosen`, row by row.
  std::vector<std::vector<int64_t>> places(static_cast<size_t>(config.count));
  for (int64_t i = 0; i < experts.numel(); ++i) places[static_cast<size_t>(ids[i])].push_back(i);
  const auto flat = weights.reshape({-1, 1});
  auto out = at::zeros_like(x);
  for (size_t e = 0; e < places.size(); ++e) {
    if (places[e].empty()) continue;
    const auto place = at::from_blob(places[e].data(),
                                     {static_cast<int64_t>(places[e].size())},
                                     at::TensorOptions().dtype(at::kLong))
                           .to(x.device());
    const auto rows = at::floor_divide(place, config.per_token);
    const auto y = apply(w.experts[e], x.index_select(0, rows));
    out.index_add_(0, rows, y * flat.index_select(0, place));
  }
  if (w.shared_gate.defined())
    out.add_(apply(w.shared, x) * at::sigmoid(at::linear(x, w.shared_gate)));
  return out;
}

}  // namespace dflash

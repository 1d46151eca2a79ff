#include "model/target.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "config/error.hpp"
#include "device/kernels/target_attention.hpp"
#include "device/kernels/target_rows.hpp"
#include "model/target_pass.hpp"

namespace dflash {
namespace {

using kernel::attention_span;

// A tap is the residual stream after its layer; rows that want one layer twice get it twice.
struct tap_set {
  std::span<const int> wanted;
  std::vector<at::Tensor> taken;

  explicit tap_set(std::span<const int> taps) : wanted(taps), taken(taps.size()) {}
  void take(int64_t layer, const at::Tensor& residual) {
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] == layer) taken[i] = residual.clone();
  }
};

}  // namespace

std::vector<float> target::rope_rows(layer_kind kind, std::span<const int32_t> positions) const {
  const auto& rope = kind == layer_kind::sliding ? sliding_rope_ : rope_;
  const size_t half = rope.inverse.size();
  std::vector<float> rows(positions.size() * 2 * half);
  float* angles = rows.data();
  for (const auto position : positions) {
    for (size_t j = 0; j < half; ++j) {
      // The product is rounded to fp32, as transformers does.
      const float angle = static_cast<float>(position) * rope.inverse[j];
      angles[j] = static_cast<float>(std::cos(static_cast<double>(angle))) * rope.attention_factor;
      angles[half + j] =
          static_cast<float>(std::sin(static_cast<double>(angle))) * rope.attention_factor;
    }
    angles += 2 * half;
  }
  return rows;
}

target::pass target::begin(std::span<const int32_t> ids, std::span<const int32_t> positions) const {
  pass p;
  const auto n = static_cast<int64_t>(ids.size());
  p.residual = at::empty({n, config_.hidden}, embedding_.options());
  const auto row_bytes = static_cast<size_t>(config_.hidden) * embedding_.element_size();
  const auto* table = static_cast<const std::byte*>(embedding_.const_data_ptr());
  auto* rows = static_cast<std::byte*>(p.residual.mutable_data_ptr());
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(rows + i * row_bytes, table + ids[i] * row_bytes, row_bytes);
  if (config_.embedding_scale != 1) p.residual.mul_(embedding_scale(config_, dtype_));
  p.rope = rope_rows(layer_kind::full, positions);
  if (config_.sliding_window > 0) p.sliding_rope = rope_rows(layer_kind::sliding, positions);
  return p;
}

void target::check_ids(std::span<const int32_t> ids) const {
  for (const auto id : ids)
    DFLASH_CHECK(id >= 0 && id < config_.vocab, "token id", id, config_.vocab);
}

target::captured target::capture(std::span<const int32_t> ids,
                                 std::span<const int32_t> doc_offsets,
                                 std::span<const int> taps,
                                 bool want_last,
                                 stage_timer* stages) const {
  const auto n = static_cast<int64_t>(ids.size());
  DFLASH_CHECK(doc_offsets.size() >= 2 && doc_offsets.front() == 0 && doc_offsets.back() == n,
               "document offsets of a row",
               doc_offsets.size(),
               n);
  int64_t layers = want_last ? config_.layers : 0;
  for (const int tap : taps) {
    DFLASH_CHECK(tap >= 0 && tap < config_.layers, "tap outside of the target", tap);
    layers = std::max<int64_t>(layers, tap + 1);
  }
  check_ids(ids);
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d)
    DFLASH_CHECK(doc_offsets[d] <= doc_offsets[d + 1], "document offsets rise", d);
  if (!embedding_.device().is_cpu()) return capture_reference(ids, doc_offsets, taps, want_last);
  std::vector<int32_t> positions(ids.size());
  std::vector<int64_t> first_block = {0};
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d) {
    const int64_t length = doc_offsets[d + 1] - doc_offsets[d];
    for (int64_t i = 0; i < length; ++i) positions[doc_offsets[d] + i] = static_cast<int32_t>(i);
    first_block.push_back(first_block.back() + kernel::blocks_for(length));
  }
  if (stages != nullptr && !stages->is_on()) stages = nullptr;
  if (stages != nullptr) stages->reset();
  auto p = begin(ids, positions);
  p.stages = stages;
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d) {
    const int64_t length = doc_offsets[d + 1] - doc_offsets[d];
    if (length == 0) continue;
    attention_span span;
    span.blocks = first_block[d + 1] - first_block[d];
    span.first_row = doc_offsets[d];
    span.rows = length;
    p.spans.push_back(span);
  }
  // Keys and values of one layer; the next one writes over them.
  const int64_t blocks = first_block.back() * config_.kv_heads;
  const auto keys =
      at::zeros({blocks, kernel::key_block_elements(config_.head_dim)}, embedding_.options());
  const auto values =
      at::zeros({blocks, kernel::value_block_elements(config_.head_dim)}, embedding_.options());
  int64_t block = 0;
  for (auto& span : p.spans) {
    span.keys = keys.select(0, block).mutable_data_ptr();
    span.values = values.select(0, block).mutable_data_ptr();
    block += span.blocks * config_.kv_heads;
  }
  if (stages != nullptr) stages->mark("embedding");
  tap_set taken(taps);
  run(p, layers, [&](int64_t layer) { taken.take(layer, p.residual); });
  return {std::move(taken.taken), want_last ? p.residual : at::Tensor()};
}

target::cached target::forward(kv_cache& cache,
                               std::span<const chunk> chunks,
                               std::span<const int> taps) const {
  std::vector<int32_t> ids, positions;
  std::vector<attention_span> spans;
  const int64_t blocks = kernel::blocks_for(cache.capacity());
  for (const auto& chunk : chunks) {
    const int64_t length = cache.length(chunk.slot);
    const auto rows = static_cast<int64_t>(chunk.tokens.size());
    DFLASH_CHECK(
        length + rows <= cache.capacity(), "chunk does not fit", length, rows, cache.capacity());
    if (rows == 0) continue;
    attention_span span;
    span.blocks = blocks;
    span.first_row = static_cast<int64_t>(ids.size());
    span.rows = rows;
    span.position = length;
    spans.push_back(span);
    ids.insert(ids.end(), chunk.tokens.begin(), chunk.tokens.end());
    for (int64_t i = 0; i < rows; ++i) positions.push_back(static_cast<int32_t>(length + i));
  }
  for (const int tap : taps)
    DFLASH_CHECK(tap >= 0 && tap < config_.layers, "tap outside of the target", tap);
  check_ids(ids);
  DFLASH_CHECK(cache.device() == device(), "a cache on the target's device");
  if (!device().is_cpu()) return forward_reference(cache, chunks, taps);
  auto p = begin(ids, positions);
  p.spans = std::move(spans);
  p.cache = &cache;
  for (const auto& chunk : chunks)
    if (!chunk.tokens.empty()) p.slots.push_back(chunk.slot);
  tap_set taken(taps);
  run(p, config_.layers, [&](int64_t layer) { taken.take(layer, p.residual); });
  for (const auto& span : p.spans) cache.append(p.slots[&span - p.spans.data()], span.rows);
  return {p.residual, std::move(taken.taken)};
}

at::Tensor target::normed(const at::Tensor& hidden) const {
  if (!hidden.device().is_cpu()) return normed_reference(hidden);
  const auto rows = hidden.contiguous();
  auto out = at::empty_like(rows);
  // Without a delta the kernel only reads the residual.
  kernel::add_rms_norm(scalar_type(dtype_),
                       const_cast<void*>(rows.const_data_ptr()),
                       nullptr,
                       final_norm_.const_data_ptr<float>(),
                       config_.rms_eps,
                       rows.size(0),
                       config_.hidden,
                       out.mutable_data_ptr());
  return out;
}

at::Tensor target::logits(const at::Tensor& hidden) const {
  auto out = head_(normed(hidden));
  if (config_.logit_cap > 0) out.div_(config_.logit_cap).tanh_().mul_(config_.logit_cap);
  return out;
}

}  // namespace dflash

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

namespace dflash {
namespace {

using kernel::attention_span;

kernel::attention_shape attention_of(const target_config& c) {
  return {c.heads, c.kv_heads, c.head_dim};
}

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

// Everything that one pass over the layers needs besides the weights.
struct target::pass {
  at::Tensor residual;                // [n, H]
  std::vector<float> rope;            // [n, hd]: cos, then sin
  std::vector<attention_span> spans;  // keys and values are set for each layer
};

std::vector<float> target::rope_rows(std::span<const int32_t> positions) const {
  const int64_t half = config_.head_dim / 2;
  std::vector<float> rope(positions.size() * config_.head_dim);
  float* angles = rope.data();
  for (const auto position : positions) {
    for (int64_t j = 0; j < half; ++j) {
      // The product is rounded to fp32, as transformers does.
      const float angle = static_cast<float>(position) * inverse_frequencies_[j];
      angles[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
      angles[half + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
    angles += config_.head_dim;
  }
  return rope;
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
  p.rope = rope_rows(positions);
  return p;
}

void target::check_ids(std::span<const int32_t> ids) const {
  for (const auto id : ids)
    DFLASH_CHECK(id >= 0 && id < config_.vocab, "token id", id, config_.vocab);
}

// Runs `layers` layers; set_memory(layer, spans) points the spans at that layer's keys and values.
template <class SetMemory>
void target::run(pass& p,
                 int64_t layers,
                 const SetMemory& set_memory,
                 const std::function<void(int64_t)>& after_layer) const {
  DFLASH_CHECK(std::cmp_less_equal(layers, layers_.size()), "a target without its layers", layers);
  const auto n = p.residual.size(0);
  const auto dtype = scalar_type(dtype_);
  const auto shape = attention_of(config_);
  const auto options = p.residual.options();
  auto normed = at::empty({n, config_.hidden}, options);
  auto mixed = at::empty({n, config_.heads * config_.head_dim}, options);
  auto gated = at::empty({n, config_.intermediate}, options);
  at::Tensor delta;  // what the last product adds to the residual stream
  const auto norm = [&](const at::Tensor& weight) {
    kernel::add_rms_norm(dtype,
                         p.residual.mutable_data_ptr(),
                         delta.defined() ? delta.const_data_ptr() : nullptr,
                         weight.const_data_ptr<float>(),
                         config_.rms_eps,
                         n,
                         config_.hidden,
                         normed.mutable_data_ptr());
  };
  for (int64_t i = 0; i < layers; ++i) {
    const auto& layer = layers_[i];
    norm(layer.input_norm);
    if (i > 0) after_layer(i - 1);
    const auto qkv = layer.qkv(normed);
    set_memory(i, p.spans);
    kernel::store_rotated(dtype, qkv.mutable_data_ptr(), p.rope.data(), shape, p.spans);
    kernel::attend(dtype, qkv.const_data_ptr(), mixed.mutable_data_ptr(), shape, p.spans);
    delta = layer.o(mixed);
    norm(layer.post_attention_norm);
    const auto gate_up = layer.gate_up(normed);
    kernel::gated_silu(
        dtype, gate_up.const_data_ptr(), n, config_.intermediate, gated.mutable_data_ptr());
    delta = layer.down(gated);
  }
  if (delta.defined()) p.residual.add_(delta);
  if (layers > 0) after_layer(layers - 1);
}

target::captured target::capture(std::span<const int32_t> ids,
                                 std::span<const int32_t> doc_offsets,
                                 std::span<const int> taps,
                                 bool want_last) const {
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
  auto p = begin(ids, positions);
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
  tap_set taken(taps);
  run(
      p,
      layers,
      [](int64_t, std::span<attention_span>) {},
      [&](int64_t layer) { taken.take(layer, p.residual); });
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
  DFLASH_CHECK(embedding_.device().is_cpu(), "the cached forward runs on the CPU");
  auto p = begin(ids, positions);
  p.spans = std::move(spans);
  tap_set taken(taps);
  run(
      p,
      config_.layers,
      [&](int64_t layer, std::span<attention_span> all) {
        auto* keys = static_cast<std::byte*>(cache.keys_[layer].mutable_data_ptr());
        auto* values = static_cast<std::byte*>(cache.values_[layer].mutable_data_ptr());
        const auto key_slot = static_cast<int64_t>(cache.keys_[layer].nbytes()) / cache.slots();
        const auto value_slot = static_cast<int64_t>(cache.values_[layer].nbytes()) / cache.slots();
        size_t next = 0;
        for (const auto& chunk : chunks) {
          if (chunk.tokens.empty()) continue;
          all[next].keys = keys + chunk.slot * key_slot;
          all[next].values = values + chunk.slot * value_slot;
          ++next;
        }
      },
      [&](int64_t layer) { taken.take(layer, p.residual); });
  for (const auto& chunk : chunks)
    cache.lengths_[chunk.slot] += static_cast<int64_t>(chunk.tokens.size());
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
  return head_(normed(hidden));
}

}  // namespace dflash

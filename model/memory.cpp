#include "model/memory.hpp"

#include <algorithm>

#include "device/packed_linear.hpp"
#include "model/drafter.hpp"
#include "model/head_loss.hpp"
#include "model/loss.hpp"

namespace dflash {

namespace {

uint64_t size_of(compute_dtype dtype) {
  return c10::elementSize(scalar_type(dtype));
}

uint64_t elements(int64_t rows, int64_t columns) {
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(columns);
}

// Columns of what the first product of a layer's mixer puts out, and of what its last one reads.
struct mixer_widths {
  int64_t in = 0, out = 0;
};

mixer_widths widths_of(const target_config& c, int64_t layer) {
  if (c.kind(layer) == layer_kind::linear)
    return {c.linear.channels() + c.linear.value_width() + 2 * c.linear.value_heads,
            c.linear.value_width()};
  const int64_t q = c.heads * c.head_dim;
  return {q * (c.attention_gate ? 2 : 1) + 2 * c.kv_heads * c.head_dim, q};
}

uint64_t layer_parameters(const target_config& c, int64_t layer) {
  const auto [in, out] = widths_of(c, layer);
  uint64_t n = elements(in + out, c.hidden);
  if (!c.has_experts(layer)) return n + elements(3 * c.intermediate, c.hidden);
  const auto& e = c.experts;
  n += elements(e.count, c.hidden) * (1 + 3 * static_cast<uint64_t>(e.intermediate));
  if (e.shared_intermediate > 0) n += elements(3 * e.shared_intermediate + 1, c.hidden);
  return n;
}

// Tokens of prompts in one pass (model/decode.cpp), answers walked at once (model/eval.cpp), blocks
// of a forward pass there and rows of its head product (model/drafter_decode.cpp).
constexpr int64_t decoded_rows = 4096, walked_prompts = 32, drafted_blocks = 1024,
                  drafted_rows = 256;

// The largest matrix of a layer, whose gradient is first a product in the compute dtype.
uint64_t largest_matrix(const drafter_config& c) {
  return std::max({elements(2 * c.intermediate, c.hidden),
                   elements(c.query_width(), c.hidden),
                   elements(c.target_hidden, c.hidden)});
}

// Columns that a pass through the target's layers has of each token: residual stream, normed, two
// deltas; the mixer's output, the gated units, the widest product.
uint64_t pass_columns(const target_config& c) {
  int64_t widest = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    // The mixer's products, or those of the MLP (experts: of the tokens that one of them gets).
    const auto [in, out] = widths_of(c, i);
    const int64_t mlp =
        c.has_experts(i)
            ? 3 * (c.experts.intermediate * c.experts.per_token + c.experts.shared_intermediate)
            : 2 * c.intermediate;
    widest = std::max({widest, in, mlp});
  }
  return static_cast<uint64_t>(4 * c.hidden + c.heads * c.head_dim + c.intermediate + widest);
}

// What layer_state keeps, [n] rows of queries of [all] slots, [context] rows of context.
uint64_t layer_elements(const drafter_config& c, int64_t n, int64_t all, int64_t context) {
  const int64_t q = c.query_width(), kv = c.kv_width();
  return elements(all, 2 * c.hidden + 3 * kv) + elements(context, 3 * kv) +
         elements(n, 2 * c.hidden + 3 * q + 2 * c.intermediate);
}

// What a forward pass of the drafter keeps.
uint64_t forward_elements(const drafter_config& c, int64_t row_tokens, int64_t anchors) {
  const int64_t slots = anchors * c.block_size, asking = anchors * (c.block_size - 1);
  uint64_t kept = layer_elements(c, asking, slots, row_tokens) + elements(asking, c.hidden);
  for (int64_t i = 0; i + 1 < c.layers; ++i) kept += layer_elements(c, slots, slots, row_tokens);
  return kept;
}

uint64_t head_chunk_bytes(
    const drafter_config& c, const loss_section& loss, int64_t anchors, uint64_t size, bool cpu) {
  const int64_t tables = terms_of(loss).teacher() ? 2 : 1;
  const int64_t rows =
      std::min(loss_chunk_rows(cpu, c.draft_vocab()), anchors * (c.block_size - 1));
  return elements(rows, c.draft_vocab() * tables) * size;
}

// Of one sequence of `tokens` that the target decodes.
uint64_t cache_bytes(const target_config& c, int64_t tokens, uint64_t size) {
  uint64_t bytes = 0;
  for (int64_t i = 0; i < c.layers; ++i)
    bytes += c.kind(i) == layer_kind::linear
                 ? elements(c.linear.value_heads * c.linear.key_dim, c.linear.value_dim) *
                           sizeof(float) +
                       elements(c.linear.taps - 1, c.linear.channels()) * size
                 : elements(tokens, 2 * c.kv_heads * c.head_dim) * size;
  return bytes;
}

}  // namespace

target_memory memory_of(
    const target_config& c, compute_dtype dtype, int64_t row_tokens, bool packed, bool layers) {
  const uint64_t size = size_of(dtype);
  target_memory m;
  const uint64_t table = elements(c.vocab, c.hidden);
  m.embedding = table * size * (c.tied ? 1 : 2);
  m.parameters = table * (c.tied ? 1 : 2) + static_cast<uint64_t>(c.hidden);
  const bool packs = packed && (dtype == compute_dtype::fp32 || cpu_has_bf16_product());
  if (packs) m.packed_head = table * size;
  if (!layers) return m;
  for (int64_t i = 0; i < c.layers; ++i) {
    const uint64_t n = layer_parameters(c, i);
    m.parameters += n + 2 * static_cast<uint64_t>(c.hidden);
    m.weights += n * size;
  }
  m.activations = static_cast<uint64_t>(row_tokens) * pass_columns(c) * size +
                  elements(row_tokens, c.rotary_dims()) * sizeof(float);
  return m;
}

uint64_t drafter_memory::passing() const {
  return std::max(activations + head_chunk, update);
}

drafter_memory memory_of(const drafter_config& c,
                         const loss_section& loss,
                         const optim_section& optim,
                         compute_dtype dtype,
                         int64_t row_tokens,
                         int64_t anchors,
                         bool packed) {
  const uint64_t size = size_of(dtype);
  drafter_memory m;
  m.parameters = static_cast<uint64_t>(drafter_parameter_count(c));
  m.masters = m.gradient = m.parameters * sizeof(float);
  m.moments = m.masters * (optim.name == "muon" ? 1 : 2);
  m.compute = dtype == compute_dtype::fp32 ? 0 : m.parameters * size;
  m.average = optim.ema > 0 ? m.masters : 0;
  const bool packs = packed && (dtype == compute_dtype::fp32 || cpu_has_bf16_product());
  if (!c.draft_ids.empty())
    m.draft_head = elements(c.draft_vocab(), c.hidden) * size * (packs ? 2 : 1);

  const int64_t slots = anchors * c.block_size, asking = anchors * (c.block_size - 1);
  const uint64_t context = elements(row_tokens, c.hidden);
  uint64_t kept = forward_elements(c, row_tokens, anchors);
  // Context and its gradient; output, hidden and their gradients.
  kept += 2 * context + 4 * elements(asking, c.hidden);
  m.activations = kept * size + context * sizeof(float);
  // Backward through a layer: the units and their gradients, and a gradient before it is added.
  const uint64_t back = elements(slots, 4 * c.intermediate + 2 * c.hidden) + largest_matrix(c);
  m.head_chunk = head_chunk_bytes(c, loss, anchors, size, packed);
  m.activations += back * size > m.head_chunk ? back * size - m.head_chunk : 0;
  if (optim.name == "muon") m.update = largest_matrix(c) * (2 * sizeof(float) + 4 * size);
  return m;
}

evaluation_memory memory_of(const target_config& t,
                            const drafter_config& d,
                            const loss_section& loss,
                            compute_dtype dtype,
                            int64_t row_tokens,
                            int64_t anchors,
                            uint64_t file_bytes,
                            const evaluation_shapes& e) {
  const uint64_t size = size_of(dtype);
  const auto parameters = static_cast<uint64_t>(drafter_parameter_count(d));
  evaluation_memory m;
  // Decoding has the projections of the context's keys and values once more, in one matrix.
  m.drafter = (parameters + elements(2 * d.layers * d.kv_width(), d.hidden)) * size;
  if (e.rows) m.drafter += parameters * size;
  if (!d.draft_ids.empty()) m.drafter += elements(d.draft_vocab(), d.hidden) * size;
  m.loading = file_bytes + parameters * sizeof(float);
  if (e.rows)
    m.work = std::max(memory_of(t, dtype, row_tokens, false).activations,
                      forward_elements(d, row_tokens, anchors) * size +
                          head_chunk_bytes(d, loss, anchors, size, true));
  if (e.prompts == 0) return m;
  const int64_t prefilled = std::max(std::min(e.prompt_tokens, decoded_rows), e.longest);
  const uint64_t answers = static_cast<uint64_t>(e.prompts) * cache_bytes(t, e.longest, size) +
                           static_cast<uint64_t>(prefilled) * pass_columns(t) * size +
                           elements(e.prompts, t.vocab) * size;
  const int64_t walked = std::min(e.prompts, walked_prompts);
  const int64_t slots = std::min(walked * e.new_tokens, drafted_blocks) * d.block_size;
  const uint64_t walk =
      elements(walked * e.longest, 2 * d.layers * d.kv_width()) * size +
      elements(slots, d.hidden) * (sizeof(float) + size) +
      elements(slots, 2 * d.query_width() + 2 * d.kv_width() + 3 * d.intermediate) * size +
      elements(std::min(drafted_rows, slots), d.draft_vocab()) * size;
  m.work = std::max({m.work, answers, walk});
  return m;
}

}  // namespace dflash

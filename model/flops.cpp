#include "model/flops.hpp"

#include <algorithm>

namespace dflash {

namespace {

double of(int64_t n) {
  return static_cast<double>(n);
}

}  // namespace

double target_row_flops(const target_config& c, int64_t layers, int64_t tokens, double document) {
  const double hidden = of(c.hidden), n = of(tokens);
  double flops = 0;
  for (int64_t i = 0; i < layers; ++i) {
    const layer_kind kind = c.kind(i);
    if (kind == layer_kind::linear) {
      const linear_config& l = c.linear;
      // Products in and out, and per token two products with the state of each value head.
      flops += 2 * n * hidden * of(l.channels() + 2 * l.value_width() + 2 * l.value_heads);
      flops += 2 * n * 2 * of(l.value_heads) * of(l.key_dim) * of(l.value_dim);
    } else {
      const int64_t width = c.heads * c.head_dim, both = 2 * c.kv_heads * c.head_dim;
      flops += 2 * n * hidden * of((c.attention_gate ? 2 : 1) * width + both + width);
      double seen = document / 2;
      if (kind == layer_kind::sliding) seen = std::min(seen, of(c.sliding_window));
      flops += 2 * n * 2 * of(width) * seen;
    }
    const bool experts = c.has_experts(i);
    const int64_t inner =
        experts ? c.experts.per_token * c.experts.intermediate + c.experts.shared_intermediate
                : c.intermediate;
    flops += 2 * n * 3 * hidden * of(inner);
  }
  return flops;
}

double drafter_batch_flops(
    const drafter_config& c, int64_t tokens, int64_t anchors, double document, bool teacher) {
  const double hidden = of(c.hidden), n = of(tokens), slots = of(anchors * c.block_size);
  const double predicted = of(anchors * (c.block_size - 1));
  const double fc = 2 * n * hidden * of(c.target_hidden) * of(static_cast<int64_t>(c.taps.size()));
  double layer_products = 0, attention = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    layer_products += 2 * n * hidden * 2 * of(c.kv_width());
    layer_products += 2 * slots * hidden * of(2 * c.query_width() + 2 * c.kv_width());
    layer_products += 2 * slots * 3 * hidden * of(c.intermediate);
    double seen = document / 2;
    if (c.sliding[static_cast<size_t>(i)]) seen = std::min(seen, of(c.sliding_window));
    attention += 2 * slots * 2 * of(c.query_width()) * (seen + of(c.block_size));
  }
  const double head = 2 * predicted * hidden * of(c.draft_vocab());
  // Back: two products for each one forward; the head is frozen and needs one only; attention is
  // counted at 2.5, since it is computed again.
  return 3 * (fc + layer_products) + 3.5 * attention + 2 * head + (teacher ? head : 0);
}

}  // namespace dflash

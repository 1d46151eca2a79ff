// The target's cached forward in ATen operators, for any device: prefill, decoding and verification
// of a ragged batch. Sequences that bring the same number of tokens are computed as one group; the
// rows of a pass lie group by group. The host gives work and never waits (but for experts).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "device/upload.hpp"
#include "model/target.hpp"
#include "model/target_experts.hpp"
#include "model/target_pass.hpp"
#include "model/target_plain.hpp"

namespace dflash {

using namespace plain;

namespace {

struct sequence {
  int64_t slot = 0;
  int64_t position = 0;   // tokens that the slot holds
  int64_t rows = 0;       // new ones
  int64_t again = 0;      // held ones that linear layers run once more (kv_cache.hpp)
  int64_t given_row = 0;  // first of its rows in the caller's order
  std::span<const int32_t> tokens;
};

// Sequences with as many new tokens and tokens run again as each other; rows are neighbours.
struct sequence_group {
  int64_t first_row = 0;
  int64_t rows = 0, again = 0;  // of each sequence
  int64_t longest = 0;          // tokens that a slot holds behind this pass
  bool begins = false;          // one sequence without a past: it sees its own rows alone
  std::vector<int64_t> slots;   // ascending
  at::Tensor slot_index;        // [slots] int64; undefined where they are neighbours
  at::Tensor seen,
      seen_window;  // [slots, 1, heads of a kv head · rows, longest] bool; unless begins

  int64_t count() const { return static_cast<int64_t>(slots.size()); }
  // [slots · rows, ...] of a pass's rows
  at::Tensor own(const at::Tensor& x) const { return x.narrow(0, first_row, count() * rows); }
  // What the slots hold, [slots, ...]: a view, or a copy where they are no neighbours.
  at::Tensor held(const at::Tensor& x) const {
    return slot_index.defined() ? at::index_select(x, 0, slot_index)
                                : x.narrow(0, slots.front(), count());
  }
  void hold(at::Tensor x, const at::Tensor& values) const {
    if (slot_index.defined())
      x.index_copy_(0, slot_index, values);
    else
      x.narrow(0, slots.front(), count()).copy_(values);
  }
};

// The fewest rows first, sequences without a past before others: decoding beside a prefill keeps
// its groups.
bool before(const sequence& a, const sequence& b) {
  const auto key = [](const sequence& s) { return std::tuple(s.position > 0, s.rows, s.again); };
  return key(a) < key(b);
}

std::vector<sequence_group> groups_of(std::span<const sequence> sequences) {
  std::vector<sequence_group> groups;
  int64_t row = 0;
  for (const auto& s : sequences) {
    auto* last = groups.empty() ? nullptr : &groups.back();
    if (s.position == 0 || last == nullptr || last->begins || last->rows != s.rows ||
        last->again != s.again) {
      groups.emplace_back();
      last = &groups.back();
      last->first_row = row;
      last->rows = s.rows;
      last->again = s.again;
      last->begins = s.position == 0;
    }
    last->slots.push_back(s.slot);
    last->longest = std::max(last->longest, s.position + s.rows);
    row += s.rows;
  }
  return groups;
}

// Row r of slot s stands at firsts[s] + r and sees places up to its own, and within the window. The
// heads that share a kv head follow each other as further rows.
at::Tensor seen_places(const at::Tensor& firsts,
                       int64_t rows,
                       int64_t longest,
                       int64_t heads_a_kv_head,
                       int64_t window) {
  const auto count = [&](int64_t n) { return at::arange(n, firsts.options()); };
  const auto own = firsts.unsqueeze(1).add(count(rows));       // [slots, rows]
  const auto distance = own.unsqueeze(2).sub(count(longest));  // [slots, rows, longest]
  auto seen = distance.ge(0);
  if (window > 0) seen = seen.logical_and(distance.lt(window));
  const int64_t slots = firsts.size(0);
  return seen.unsqueeze(1)
      .expand({slots, heads_a_kv_head, rows, longest})
      .reshape({slots, 1, heads_a_kv_head * rows, longest});
}

}  // namespace

struct target::cached_pass {
  kv_cache& cache;
  std::vector<sequence_group> groups;
  at::Tensor places;              // [n] int64: slot · capacity + position, of each row
  at::Tensor rope, sliding_rope;  // [n, 1, rotary dims]: cos, then sin
};

at::Tensor target::attend_cached(int64_t i, const at::Tensor& normed, const cached_pass& p) const {
  const auto& w = layers_[i].attention;
  const bool slides = config_.kind(i) == layer_kind::sliding;
  const int64_t n = normed.size(0), hd = config_.head_dim, heads = config_.heads,
                kv = config_.kv_heads, shared = heads / kv;
  auto qkv = w.qkv(normed);
  if (w.qkv_bias.defined()) qkv = qkv.add(w.qkv_bias);
  qkv = qkv.view({n, -1, hd});
  auto q = qkv.narrow(1, 0, heads), k = qkv.narrow(1, heads, kv);
  if (config_.head_norms) {
    q = norm_rows(q, w.q_norm, config_.rms_eps);
    k = norm_rows(k, w.k_norm, config_.rms_eps);
  }
  q = rotated(q, slides ? p.sliding_rope : p.rope);
  k = rotated(k, slides ? p.sliding_rope : p.rope);
  const auto v = qkv.narrow(1, heads + kv, kv);
  const auto keep = [&](const at::Tensor& layer, const at::Tensor& rows) {
    layer.view({-1, kv, hd}).index_copy_(0, p.places, rows);
  };
  const auto &keys = p.cache.keys_[i], &values = p.cache.values_[i];
  keep(keys, k);
  keep(values, v);
  const double scale = config_.attention_scale != 0 ? config_.attention_scale
                                                    : 1 / std::sqrt(static_cast<double>(hd));
  std::vector<at::Tensor> mixed;
  for (const auto& g : p.groups) {
    if (g.begins) {
      const auto part = [&](const at::Tensor& x) { return g.own(x).transpose(0, 1).unsqueeze(0); };
      std::optional<at::Tensor> mask;
      if (slides) mask = window_mask(g.rows, config_.sliding_window, q.device());
      mixed.push_back(at::scaled_dot_product_attention(
                          part(q), part(k), part(v), mask, 0.0, !slides, scale, true)
                          .squeeze(0)
                          .transpose(0, 1)
                          .reshape({g.rows, heads * hd}));
      continue;
    }
    // Heads that share a kv head are rows of one product: nothing of the cache is repeated.
    const auto asking = g.own(q)
                            .reshape({g.count(), g.rows, kv, shared, hd})
                            .permute({0, 2, 3, 1, 4})
                            .reshape({g.count(), kv, shared * g.rows, hd});
    const auto past = [&](const at::Tensor& layer) {
      return g.held(layer.narrow(1, 0, g.longest)).transpose(1, 2);
    };
    const at::Tensor& seen = slides ? g.seen_window : g.seen;
    mixed.push_back(at::scaled_dot_product_attention(
                        asking, past(keys), past(values), seen, 0.0, false, scale, false)
                        .reshape({g.count(), kv, shared, g.rows, hd})
                        .permute({0, 3, 1, 2, 4})
                        .reshape({g.count() * g.rows, heads * hd}));
  }
  auto all = at::cat(mixed);
  if (config_.attention_gate)
    all = all.mul(at::sigmoid(qkv.narrow(1, heads + 2 * kv, heads).reshape({n, heads * hd})));
  const auto out = w.o(all);
  return w.o_bias.defined() ? out.add(w.o_bias) : out;
}

at::Tensor target::mix_linear_cached(int64_t i,
                                     const at::Tensor& normed,
                                     const cached_pass& p) const {
  const auto& w = layers_[i].linear;
  const auto& l = config_.linear;
  auto& memory = p.cache.linear_[i];
  const auto all = w.in(normed);
  const int64_t channels = l.channels(), width = l.value_width(), hv = l.value_heads;
  const auto beta = all.narrow(1, channels + width, hv).to(at::kFloat);
  const auto step = all.narrow(1, channels + width + hv, hv).to(at::kFloat);
  const auto gates =
      at::cat({at::softplus(step + w.decay_bias).mul(w.decay), at::sigmoid(beta)}, 1);  // [n, 2 hv]
  std::vector<at::Tensor> mixed;
  for (const auto& g : p.groups) {
    const int64_t s = g.count(), n = g.again + g.rows;
    const auto own = [&](const at::Tensor& x) { return g.own(x).unflatten(0, {s, g.rows}); };
    // Inputs with those that the convolution reaches back to, [s, K - 1 + n, channels].
    const auto inputs = at::cat(
        {g.held(memory.inputs.narrow(1, 0, l.taps - 1 + g.again)), own(all.narrow(1, 0, channels))},
        1);
    const auto gated = at::cat({g.held(memory.gates.narrow(1, 0, g.again)), own(gates)}, 1);
    const auto wide = inputs.to(at::kFloat);
    auto sum = wide.narrow(1, 0, n).mul(w.conv.select(0, 0));
    for (int64_t t = 1; t < l.taps; ++t)
      sum = sum.add(wide.narrow(1, t, n).mul(w.conv.select(0, t)));
    const auto convolved = at::silu(sum).to(all.scalar_type()).to(at::kFloat);
    // [s · hv, n, size], key heads repeated
    const auto part = [&](int64_t from, int64_t heads, int64_t size) {
      return convolved.narrow(2, from, heads * size)
          .reshape({s, n, heads, size})
          .transpose(1, 2)
          .repeat_interleave(hv / heads, 1)
          .reshape({s * hv, n, size});
    };
    const auto gate = [&](int64_t from) {
      return gated.narrow(2, from, hv).transpose(1, 2).reshape({s * hv, n});
    };
    const auto q = part(0, l.key_heads, l.key_dim), k = part(l.key_width(), l.key_heads, l.key_dim),
               v = part(2 * l.key_width(), hv, l.value_dim), decay = gate(0), b = gate(hv);
    auto state = g.held(memory.state).reshape({s * hv, l.key_dim, l.value_dim});
    std::vector<at::Tensor> out;
    const auto run = [&](int64_t first, int64_t count) {
      const auto piece = [&](const at::Tensor& x) { return x.narrow(1, first, count); };
      if (count > 0)
        out.push_back(
            chunked_delta_rule(piece(q), piece(k), piece(v), piece(decay), piece(b), &state));
    };
    // What may be taken back leaves no trace in the state that is kept.
    const int64_t kept = std::min(g.rows, p.cache.rollback_), window = l.taps - 1 + kept;
    run(0, n - kept);
    if (n > kept) g.hold(memory.state, state.reshape({s, hv, l.key_dim, l.value_dim}));
    run(n - kept, kept);
    g.hold(memory.inputs.narrow(1, 0, window), inputs.narrow(1, l.taps - 1 + n - window, window));
    if (kept > 0) g.hold(memory.gates.narrow(1, 0, kept), gated.narrow(1, n - kept, kept));
    mixed.push_back(at::cat(out, 1)
                        .narrow(1, g.again, g.rows)
                        .reshape({s, hv, g.rows, l.value_dim})
                        .transpose(1, 2)
                        .reshape({s * g.rows, hv, l.value_dim})
                        .to(all.scalar_type()));
  }
  const auto out = norm_rows(at::cat(mixed), w.norm, config_.rms_eps).reshape({-1, width});
  const auto silent = at::silu(all.narrow(1, channels, width).to(at::kFloat));
  return w.out(out.to(at::kFloat).mul(silent).to(normed.scalar_type()));
}

target::cached target::forward_reference(kv_cache& cache,
                                         std::span<const chunk> chunks,
                                         std::span<const int> taps) const {
  std::vector<sequence> sequences;
  int64_t n = 0;
  for (const auto& c : chunks) {
    if (c.tokens.empty()) continue;
    const auto rows = static_cast<int64_t>(c.tokens.size());
    const int64_t length = cache.lengths_[c.slot];
    const int64_t again = cache.hybrid_ ? length - cache.settled_[c.slot] : 0;
    sequences.push_back({c.slot, length, rows, again, n, c.tokens});
    n += rows;
  }
  cached out;
  out.taps.resize(taps.size());
  if (n == 0) {
    out.hidden = embedding_.narrow(0, 0, 0);
    for (auto& tap : out.taps) tap = out.hidden;
    return out;
  }
  std::stable_sort(sequences.begin(), sequences.end(), before);
  std::vector<int32_t> ids, positions;
  std::vector<int64_t> places, given(static_cast<size_t>(n));  // [given row] -> row of the pass
  for (const auto& s : sequences)
    for (int64_t r = 0; r < s.rows; ++r) {
      given[static_cast<size_t>(s.given_row + r)] = static_cast<int64_t>(ids.size());
      ids.push_back(s.tokens[static_cast<size_t>(r)]);
      positions.push_back(static_cast<int32_t>(s.position + r));
      places.push_back(s.slot * cache.capacity() + s.position + r);
    }
  const auto here = device();
  const auto rope_of = [&](layer_kind kind) {
    return upload(std::span<const float>(rope_rows(kind, positions)), here)
        .view({n, 1, config_.rotary_dims()});
  };
  cached_pass p{cache, groups_of(sequences), upload(places, here), rope_of(layer_kind::full), {}};
  if (config_.sliding_window > 0) p.sliding_rope = rope_of(layer_kind::sliding);
  auto next = sequences.begin();
  for (auto& g : p.groups) {
    std::vector<int64_t> firsts;
    for (int64_t s = 0; s < g.count(); ++s) firsts.push_back((next++)->position);
    if (!std::is_sorted(g.slots.begin(), g.slots.end()) ||
        g.slots.back() - g.slots.front() + 1 != g.count())
      g.slot_index = upload(g.slots, here);
    if (g.begins) continue;
    const auto on_device = upload(firsts, here);
    const auto seen = [&](int64_t window) {
      return seen_places(on_device, g.rows, g.longest, config_.heads / config_.kv_heads, window);
    };
    g.seen = seen(0);
    if (config_.sliding_window > 0) g.seen_window = seen(config_.sliding_window);
  }

  auto residual = at::index_select(embedding_, 0, upload(ids, here));
  if (config_.embedding_scale != 1) residual = residual.mul(embedding_scale(config_, dtype_));
  const auto add = [&](at::Tensor branch, const at::Tensor& weight) {
    if (config_.norms_after) branch = norm_rows(branch, weight, config_.rms_eps);
    residual = residual.add(branch);
  };
  const bool sorted = std::is_sorted(given.begin(), given.end());
  const auto given_index = sorted ? at::Tensor() : upload(given, here);
  const auto in_given_order = [&](const at::Tensor& rows) {
    return sorted ? rows : at::index_select(rows, 0, given_index);
  };
  for (int64_t i = 0; i < config_.layers; ++i) {
    const auto& layer = layers_[i];
    const auto mixer_in = norm_rows(residual, layer.before_mixer, config_.rms_eps);
    add(config_.kind(i) == layer_kind::linear ? mix_linear_cached(i, mixer_in, p)
                                              : attend_cached(i, mixer_in, p),
        layer.after_mixer);
    const auto mlp_in = norm_rows(residual, layer.before_mlp, config_.rms_eps);
    const auto dense = [&](const mlp_weights& w, const at::Tensor& x) {
      return mix_dense(config_.act, w, x);
    };
    add(config_.has_experts(i) ? expert_sum(config_.experts, layer.experts, mlp_in, dense)
                               : dense(layer.mlp, mlp_in),
        layer.after_mlp);
    for (size_t t = 0; t < taps.size(); ++t)
      if (taps[t] == i) out.taps[t] = in_given_order(residual);
  }
  out.hidden = in_given_order(residual);
  for (const auto& s : sequences) cache.append(s.slot, s.rows);
  return out;
}

}  // namespace dflash

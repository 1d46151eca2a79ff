// The target's capture in ATen operators only: valid on every device, and what the CPU kernels are
// tested against. Linear layers by chunks, as arXiv 2412.06464 section 3.3 has it, where the kernel
// goes token by token.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/square.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "config/error.hpp"
#include "device/upload.hpp"
#include "model/target_experts.hpp"
#include "model/target_pass.hpp"
#include "model/target_plain.hpp"

namespace dflash {
namespace plain {

at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto wide = x.to(at::kFloat);
  const auto scale = at::rsqrt(at::mean(at::square(wide), {-1}, true).add(eps));
  return wide.mul(scale).mul(weight).to(x.scalar_type());
}

// x [n, heads, hd], rope [n, 1, dims]: cos, then sin.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& rope) {
  const auto wide = x.to(at::kFloat);
  const int64_t half = rope.size(2) / 2, rest = x.size(2) - 2 * half;
  const auto cos = rope.narrow(2, 0, half), sin = rope.narrow(2, half, half);
  const auto a = wide.narrow(2, 0, half), b = wide.narrow(2, half, half);
  return at::cat({a.mul(cos).sub(b.mul(sin)),
                  b.mul(cos).add(a.mul(sin)),
                  wide.narrow(2, 2 * half, rest)},
                 2)
      .to(x.scalar_type());
}

// [length, length], true where row i sees key j: i - window < j <= i.
at::Tensor window_mask(int64_t length, int64_t window, at::Device device) {
  const auto places = at::arange(length, at::TensorOptions().dtype(at::kLong).device(device));
  const auto distance = places.unsqueeze(1) - places.unsqueeze(0);
  return distance.ge(0).logical_and(distance.lt(window));
}

at::Tensor mix_dense(activation act, const mlp_weights& w, const at::Tensor& x) {
  auto gate_up = w.gate_up(x);
  if (w.gate_up_bias.defined()) gate_up = gate_up.add(w.gate_up_bias);
  const int64_t width = gate_up.size(1) / 2;
  const auto gate = gate_up.narrow(1, 0, width), up = gate_up.narrow(1, width, width);
  const auto units = act == activation::gelu_tanh
                         ? at::gelu(gate, "tanh").mul(up)
                         : at::silu(gate.to(at::kFloat)).mul(up.to(at::kFloat)).to(x.scalar_type());
  const auto out = w.down(units);
  return w.down_bias.defined() ? out.add(w.down_bias) : out;
}

at::Tensor unit_rows(const at::Tensor& x) {
  return x.mul(at::rsqrt(x.mul(x).sum({-1}, true).add(1e-6)));
}

at::Tensor chunked_delta_rule(at::Tensor q,
                              at::Tensor k,
                              at::Tensor v,
                              at::Tensor decay,
                              at::Tensor beta,
                              at::Tensor* carried) {
  const int64_t chunk = std::min<int64_t>(64, q.size(1));
  const int64_t heads = q.size(0), n = q.size(1), dk = q.size(2), dv = v.size(2);
  const int64_t padding = (chunk - n % chunk) % chunk, chunks = (n + padding) / chunk;
  const auto rows = [&](const at::Tensor& x) {
    return at::pad(x, {0, 0, 0, padding}).view({heads, chunks, chunk, x.size(2)});
  };
  const auto scalars = [&](const at::Tensor& x) {
    return at::pad(x, {0, padding}).view({heads, chunks, chunk});
  };
  q = rows(unit_rows(q).mul(1 / std::sqrt(static_cast<double>(dk))));
  k = rows(unit_rows(k));
  v = rows(v);
  beta = scalars(beta).unsqueeze(-1);
  const auto total = scalars(decay).cumsum(2);  // log of what is kept since the chunk's start
  const auto later = window_mask(chunk, chunk, q.device()).logical_not();
  // [i, j] what row i still holds of row j
  const auto kept = total.unsqueeze(3)
                        .sub(total.unsqueeze(2))
                        .masked_fill(later, -std::numeric_limits<double>::infinity())
                        .exp();
  const auto key_pairs = at::matmul(k.mul(beta), k.transpose(2, 3)).mul(kept);
  const auto query_pairs = at::matmul(q, k.transpose(2, 3)).mul(kept);
  const auto solve = [&](const at::Tensor& right) {
    return at::linalg_solve_triangular(key_pairs, right, false, true, true);
  };
  const auto values = solve(v.mul(beta));
  const auto known = solve(k.mul(beta).mul(total.exp().unsqueeze(-1)));
  const auto last = total.narrow(2, chunk - 1, 1);
  q = q.mul(total.exp().unsqueeze(-1));
  k = k.mul(last.sub(total).exp().unsqueeze(-1));
  auto state = carried ? *carried : at::zeros({heads, dk, dv}, q.options());
  std::vector<at::Tensor> out;
  for (int64_t i = 0; i < chunks; ++i) {
    const auto fresh = values.select(1, i).sub(at::matmul(known.select(1, i), state));
    out.push_back(
        at::matmul(q.select(1, i), state).add(at::matmul(query_pairs.select(1, i), fresh)));
    state = state.mul(last.select(1, i).exp().unsqueeze(-1))
                .add(at::matmul(k.select(1, i).transpose(1, 2), fresh));
  }
  if (carried) *carried = state;  // what pads the last chunk adds nothing, and nothing decays
  return at::cat(out, 1).narrow(1, 0, n);
}

}  // namespace plain

using namespace plain;

at::Tensor target::normed_reference(const at::Tensor& hidden) const {
  return norm_rows(hidden, final_norm_, config_.rms_eps);
}

at::Tensor target::attend_reference(int64_t i,
                                    const at::Tensor& normed,
                                    std::span<const int32_t> doc_offsets,
                                    std::span<const at::Tensor> rope) const {
  const auto& w = layers_[i].attention;
  const bool slides = config_.kind(i) == layer_kind::sliding;
  const int64_t n = normed.size(0), hd = config_.head_dim, heads = config_.heads,
                kv = config_.kv_heads;
  auto qkv = w.qkv(normed);
  if (w.qkv_bias.defined()) qkv = qkv.add(w.qkv_bias);
  qkv = qkv.view({n, -1, hd});
  auto q = qkv.narrow(1, 0, heads), k = qkv.narrow(1, heads, kv);
  if (config_.head_norms) {
    q = norm_rows(q, w.q_norm, config_.rms_eps);
    k = norm_rows(k, w.k_norm, config_.rms_eps);
  }
  q = rotated(q, rope[slides ? 1 : 0]);
  k = rotated(k, rope[slides ? 1 : 0]);
  const auto v = qkv.narrow(1, heads + kv, kv);
  const double scale = config_.attention_scale != 0 ? config_.attention_scale
                                                    : 1 / std::sqrt(static_cast<double>(hd));
  std::vector<at::Tensor> mixed;
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d) {
    const int64_t first = doc_offsets[d], length = doc_offsets[d + 1] - first;
    if (length == 0) continue;
    // [1, heads, length, hd]
    const auto part = [&](const at::Tensor& x) {
      return x.narrow(0, first, length).transpose(0, 1).unsqueeze(0);
    };
    std::optional<at::Tensor> mask;
    if (slides) mask = window_mask(length, config_.sliding_window, q.device());
    mixed.push_back(
        at::scaled_dot_product_attention(part(q), part(k), part(v), mask, 0.0, !slides, scale, true)
            .squeeze(0)
            .transpose(0, 1)
            .reshape({length, heads * hd}));
  }
  auto all = at::cat(mixed);
  if (config_.attention_gate)
    all = all.mul(at::sigmoid(qkv.narrow(1, heads + 2 * kv, heads).reshape({n, heads * hd})));
  const auto out = w.o(all);
  return w.o_bias.defined() ? out.add(w.o_bias) : out;
}

at::Tensor target::mix_linear_reference(int64_t i,
                                        const at::Tensor& normed,
                                        std::span<const int32_t> doc_offsets) const {
  const auto& w = layers_[i].linear;
  const auto& l = config_.linear;
  const auto all = w.in(normed);
  const int64_t channels = l.channels(), width = l.value_width(), hv = l.value_heads;
  const auto kernel = w.conv.t().unsqueeze(1);  // [channels, 1, K]
  const std::vector<int64_t> one = {1}, none = {0};
  std::vector<at::Tensor> mixed;
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d) {
    const int64_t first = doc_offsets[d], length = doc_offsets[d + 1] - first;
    if (length == 0) continue;
    const auto rows = all.narrow(0, first, length);
    const auto wide = rows.narrow(1, 0, channels).to(at::kFloat).t().unsqueeze(0);
    const auto convolved = at::silu(at::conv1d(at::pad(wide, {l.taps - 1, 0}),
                                               kernel,
                                               std::nullopt,
                                               at::IntArrayRef(one),
                                               at::IntArrayRef(none),
                                               at::IntArrayRef(one),
                                               channels))
                               .squeeze(0)
                               .t()
                               .to(rows.scalar_type())
                               .to(at::kFloat);
    // [heads, length, size]
    const auto part = [&](int64_t from, int64_t heads, int64_t size) {
      return convolved.narrow(1, from, heads * size).reshape({length, heads, size}).transpose(0, 1);
    };
    const auto repeated = [&](const at::Tensor& x) {
      return x.repeat_interleave(hv / l.key_heads, 0);
    };
    const auto beta = rows.narrow(1, channels + width, hv).to(at::kFloat).t();
    const auto step = rows.narrow(1, channels + width + hv, hv).to(at::kFloat);
    mixed.push_back(chunked_delta_rule(repeated(part(0, l.key_heads, l.key_dim)),
                                       repeated(part(l.key_width(), l.key_heads, l.key_dim)),
                                       part(2 * l.key_width(), hv, l.value_dim),
                                       at::softplus(step + w.decay_bias).mul(w.decay).t(),
                                       at::sigmoid(beta))
                        .transpose(0, 1)
                        .to(rows.scalar_type()));
  }
  const auto out = norm_rows(at::cat(mixed), w.norm, config_.rms_eps).reshape({-1, width});
  const auto gate = at::silu(all.narrow(1, channels, width).to(at::kFloat));
  return w.out(out.to(at::kFloat).mul(gate).to(normed.scalar_type()));
}

target::captured target::capture_reference(std::span<const int32_t> ids,
                                           std::span<const int32_t> doc_offsets,
                                           std::span<const int> taps,
                                           bool want_last) const {
  const auto n = static_cast<int64_t>(ids.size());
  const auto device = embedding_.device();
  int64_t layers = want_last ? config_.layers : 0;
  for (const int tap : taps) layers = std::max<int64_t>(layers, tap + 1);
  std::vector<int32_t> positions(ids.size());
  for (size_t d = 0; d + 1 < doc_offsets.size(); ++d)
    for (int32_t i = doc_offsets[d]; i < doc_offsets[d + 1]; ++i) positions[i] = i - doc_offsets[d];
  const auto rope_of = [&](layer_kind kind) {
    return upload(std::span<const float>(rope_rows(kind, positions)), device)
        .view({n, 1, config_.rotary_dims()});
  };
  const at::Tensor rope[] = {rope_of(layer_kind::full), rope_of(layer_kind::sliding)};
  auto residual = at::index_select(embedding_, 0, upload(ids, device));
  if (config_.embedding_scale != 1) residual = residual.mul(embedding_scale(config_, dtype_));
  captured out;
  out.taps.resize(taps.size());
  const auto add = [&](at::Tensor branch, const at::Tensor& weight) {
    if (config_.norms_after) branch = norm_rows(branch, weight, config_.rms_eps);
    residual = residual.add(branch);
  };
  for (int64_t i = 0; i < layers; ++i) {
    const auto& layer = layers_[i];
    const auto mixer_in = norm_rows(residual, layer.before_mixer, config_.rms_eps);
    add(config_.kind(i) == layer_kind::linear ? mix_linear_reference(i, mixer_in, doc_offsets)
                                              : attend_reference(i, mixer_in, doc_offsets, rope),
        layer.after_mixer);
    const auto mlp_in = norm_rows(residual, layer.before_mlp, config_.rms_eps);
    const auto dense = [&](const mlp_weights& w, const at::Tensor& x) {
      return mix_dense(config_.act, w, x);
    };
    add(config_.has_experts(i) ? expert_sum(config_.experts, layer.experts, mlp_in, dense)
                               : dense(layer.mlp, mlp_in),
        layer.after_mlp);
    for (size_t t = 0; t < taps.size(); ++t)
      if (taps[t] == i) out.taps[t] = residual;
  }
  if (want_last) out.last_hidden = residual;
  return out;
}

}  // namespace dflash

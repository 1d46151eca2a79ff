// The target's layers by the CPU kernels: one pass for capture, prefill and decoding, for all
// families.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <utility>

#include "config/error.hpp"
#include "device/kernels/delta_rule.hpp"
#include "device/kernels/target_rows.hpp"
#include "model/target_experts.hpp"
#include "model/target_pass.hpp"

namespace dflash {

double embedding_scale(const target_config& c, compute_dtype dtype) {
  if (dtype == compute_dtype::fp32)
    return static_cast<double>(static_cast<float>(c.embedding_scale));
  return static_cast<double>(
      static_cast<float>(c10::BFloat16(static_cast<float>(c.embedding_scale))));
}

kernel::attention_shape attention_of(const target_config& c, layer_kind kind) {
  return {
      .heads = c.heads,
      .kv_heads = c.kv_heads,
      .head_dim = c.head_dim,
      .rotary_dims = c.rotary_dims(),
      .row_elements = (c.heads + 2 * c.kv_heads + (c.attention_gate ? c.heads : 0)) * c.head_dim,
      .window = kind == layer_kind::sliding ? c.sliding_window : 0,
      .scale = static_cast<float>(c.attention_scale)};
}

namespace {

// out [n, I] is written over where it fits, else a new tensor.
at::Tensor gated_units(activation act, const at::Tensor& gate_up, at::Tensor* out) {
  const int64_t n = gate_up.size(0), width = gate_up.size(1) / 2;
  if (act == activation::gelu_tanh)
    return at::gelu(gate_up.narrow(1, 0, width), "tanh").mul_(gate_up.narrow(1, width, width));
  auto gated = out && out->size(1) == width ? *out : at::empty({n, width}, gate_up.options());
  kernel::gated_silu(
      gate_up.scalar_type(), gate_up.const_data_ptr(), n, width, gated.mutable_data_ptr());
  return gated;
}

at::Tensor mix_dense(activation act, const mlp_weights& w, const at::Tensor& x, at::Tensor* room) {
  auto gate_up = w.gate_up(x);
  if (w.gate_up_bias.defined()) gate_up.add_(w.gate_up_bias);
  auto out = w.down(gated_units(act, gate_up, room));
  if (w.down_bias.defined()) out.add_(w.down_bias);
  return out;
}

// In place, [n, d].
void norm_rows(at::Tensor& x, const at::Tensor& weight, double eps, int64_t d) {
  kernel::add_rms_norm(x.scalar_type(),
                       x.mutable_data_ptr(),
                       nullptr,
                       weight.const_data_ptr<float>(),
                       eps,
                       x.numel() / d,
                       d,
                       x.mutable_data_ptr());
}

}  // namespace

void target::run(pass& p, int64_t layers, const std::function<void(int64_t)>& after_layer) const {
  DFLASH_CHECK(std::cmp_less_equal(layers, layers_.size()), "a target without its layers", layers);
  const auto n = p.residual.size(0);
  const auto dtype = scalar_type(dtype_);
  const auto options = p.residual.options();
  auto normed = at::empty({n, config_.hidden}, options);
  p.mixed = at::empty({n, config_.heads * config_.head_dim}, options);
  p.gated = at::empty({n, config_.intermediate}, options);
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
  const auto mark = [&](const char* name, int64_t i) {
    if (p.stages != nullptr) p.stages->mark(name, static_cast<int32_t>(i / layers_per_stage));
  };
  for (int64_t i = 0; i < layers; ++i) {
    const auto& layer = layers_[i];
    norm(layer.before_mixer);
    if (i > 0) after_layer(i - 1);
    mark("norm and tap", i);
    delta = config_.kind(i) == layer_kind::linear ? mix_linear(i, normed, p)
                                                  : mix_attention(i, normed, p);
    if (config_.norms_after) norm_rows(delta, layer.after_mixer, config_.rms_eps, config_.hidden);
    mark("attention", i);
    norm(layer.before_mlp);
    if (config_.has_experts(i))
      delta = expert_sum(
          config_.experts, layer.experts, normed, [&](const mlp_weights& w, const at::Tensor& x) {
            return mix_dense(config_.act, w, x, nullptr);
          });
    else
      delta = mix_dense(config_.act, layer.mlp, normed, &p.gated);
    if (config_.norms_after) norm_rows(delta, layer.after_mlp, config_.rms_eps, config_.hidden);
    mark("MLP", i);
  }
  if (delta.defined()) p.residual.add_(delta);
  if (layers > 0) after_layer(layers - 1);
  if (layers > 0) mark("norm and tap", layers - 1);
}

at::Tensor target::mix_attention(int64_t i, const at::Tensor& normed, pass& p) const {
  const auto& w = layers_[i].attention;
  const auto kind = config_.kind(i);
  const auto dtype = scalar_type(dtype_);
  const auto shape = attention_of(config_, kind);
  const auto n = normed.size(0);
  auto qkv = w.qkv(normed);
  if (w.qkv_bias.defined()) qkv.add_(w.qkv_bias);
  if (config_.head_norms) {
    const auto norm_some = [&](int64_t first, int64_t heads, const at::Tensor& weight) {
      kernel::norm_heads(dtype,
                         static_cast<std::byte*>(qkv.mutable_data_ptr()) +
                             first * config_.head_dim * qkv.element_size(),
                         n,
                         shape.stride(),
                         heads,
                         config_.head_dim,
                         weight.const_data_ptr<float>(),
                         config_.rms_eps);
    };
    norm_some(0, config_.heads, w.q_norm);
    norm_some(config_.heads, config_.kv_heads, w.k_norm);
  }
  if (p.cache) {
    const auto point = [&](const at::Tensor& blocks, void* kernel::attention_span::*to) {
      const auto bytes = static_cast<int64_t>(blocks.nbytes()) / p.cache->slots();
      for (size_t s = 0; s < p.spans.size(); ++s)
        p.spans[s].*to = static_cast<std::byte*>(blocks.mutable_data_ptr()) + p.slots[s] * bytes;
    };
    point(p.cache->keys_[i], &kernel::attention_span::keys);
    point(p.cache->values_[i], &kernel::attention_span::values);
  }
  const auto& rope = kind == layer_kind::sliding ? p.sliding_rope : p.rope;
  kernel::store_rotated(dtype, qkv.mutable_data_ptr(), rope.data(), shape, p.spans);
  kernel::attend(dtype, qkv.const_data_ptr(), p.mixed.mutable_data_ptr(), shape, p.spans);
  if (config_.attention_gate) {
    const int64_t first = (config_.heads + 2 * config_.kv_heads) * config_.head_dim;
    p.mixed.mul_(at::sigmoid(qkv.narrow(1, first, config_.heads * config_.head_dim)));
  }
  auto out = w.o(p.mixed);
  if (w.o_bias.defined()) out.add_(w.o_bias);
  return out;
}

// Each sequence behind the tokens whose state is not settled yet (kv_cache.hpp): they are run
// through the rule once more, and so are the inputs that its convolution reaches back to.
at::Tensor target::mix_linear(int64_t i, const at::Tensor& normed, pass& p) const {
  const auto& w = layers_[i].linear;
  const auto& l = config_.linear;
  const auto dtype = scalar_type(dtype_);
  const int64_t n = normed.size(0), hv = l.value_heads, channels = l.channels();
  const auto all = w.in(normed);
  const auto part = [&](int64_t first, int64_t width) { return all.narrow(1, first, width); };
  const auto inputs = part(0, channels);
  const auto gate = part(channels, l.value_width());
  const auto beta = part(channels + l.value_width(), hv).to(at::kFloat);
  const auto step = part(channels + l.value_width() + hv, hv).to(at::kFloat);
  const auto gates =
      at::cat({at::softplus(step + w.decay_bias) * w.decay, at::sigmoid(beta)}, 1);  // [n, 2 hv]
  auto mixed = at::empty({n, l.value_width()}, normed.options());
  const kernel::delta_shape shape{l.key_heads, hv, l.key_dim, l.value_dim};
  std::vector<kernel::delta_span> spans;
  std::vector<at::Tensor> x, g, y;  // [span] inputs with what precedes them, gates, convolved
  for (size_t s = 0; s < p.spans.size(); ++s) {
    const auto& rows = p.spans[s];
    const int64_t slot = p.cache ? p.slots[s] : 0;
    const int64_t again = p.cache ? p.cache->lengths_[slot] - p.cache->settled_[slot] : 0;
    auto before = p.cache
                      ? p.cache->linear_[i].inputs.select(0, slot).narrow(0, 0, l.taps - 1 + again)
                      : at::zeros({l.taps - 1, channels}, normed.options());
    x.push_back(at::cat({before, inputs.narrow(0, rows.first_row, rows.rows)}));
    const auto own = gates.narrow(0, rows.first_row, rows.rows);
    g.push_back(again > 0
                    ? at::cat({p.cache->linear_[i].gates.select(0, slot).narrow(0, 0, again), own})
                    : own);
    y.push_back(at::empty({again + rows.rows, channels}, normed.options()));
    kernel::causal_conv_silu(dtype,
                             x.back().const_data_ptr(),
                             w.conv.const_data_ptr<float>(),
                             again + rows.rows,
                             channels,
                             l.taps,
                             y.back().mutable_data_ptr());
    kernel::delta_span span;
    span.qkv = y.back().const_data_ptr();
    span.gates = g.back().const_data_ptr<float>();
    span.rows = again + rows.rows;
    span.settled = span.rows;
    span.silent = again;
    span.out = mixed.select(0, rows.first_row).mutable_data_ptr();
    if (p.cache) {
      span.state = p.cache->linear_[i].state.select(0, slot).mutable_data_ptr<float>();
      span.settled -= std::min(rows.rows, p.cache->rollback_);
    }
    spans.push_back(span);
  }
  kernel::delta_rule(dtype, shape, spans);
  for (size_t s = 0; p.cache && s < spans.size(); ++s) {
    auto& memory = p.cache->linear_[i];
    const int64_t kept = spans[s].rows - spans[s].settled, window = l.taps - 1 + kept;
    memory.inputs.select(0, p.slots[s])
        .narrow(0, 0, window)
        .copy_(x[s].narrow(0, x[s].size(0) - window, window));
    memory.gates.select(0, p.slots[s])
        .narrow(0, 0, kept)
        .copy_(g[s].narrow(0, g[s].size(0) - kept, kept));
  }
  norm_rows(mixed, w.norm, config_.rms_eps, l.value_dim);
  mixed.mul_(at::silu(gate.to(at::kFloat)));
  return w.out(mixed);
}

}  // namespace dflash

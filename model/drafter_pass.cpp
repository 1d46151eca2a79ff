#include "model/drafter_pass.hpp"

#include <ATen/ops/addmm.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "config/error.hpp"
#include "device/upload.hpp"

namespace dflash {
namespace {

// Two neighbours in a flat buffer as one matrix [ra + rb, n].
at::Tensor joined(const at::Tensor& a, const at::Tensor& b) {
  DFLASH_CHECK(a.storage_offset() + a.numel() == b.storage_offset() && a.size(1) == b.size(1),
               "weights are not neighbours in one buffer");
  return at::as_strided(a, {a.size(0) + b.size(0), a.size(1)}, {a.size(1), 1}, a.storage_offset());
}

// Rows of slots 1..B-1 of [A B, n].
at::Tensor without_anchors(const at::Tensor& x, int64_t blocks) {
  const int64_t b = x.size(0) / blocks;
  return x.view({blocks, b, x.size(1)}).narrow(1, 1, b - 1).reshape({blocks * (b - 1), x.size(1)});
}

// into = or += d_outᵀ in, fp32. In bf16 the product itself is rounded to bf16 once, sums are fp32.
void weight_gradient(at::Tensor into,
                     const at::Tensor& d_out,
                     const at::Tensor& in,
                     bool overwrite) {
  if (d_out.scalar_type() == at::kFloat)
    at::addmm_out(into, into, d_out.t(), in, overwrite ? 0 : 1, 1);
  else
    kernel::accumulate(into, at::mm(d_out.t(), in), overwrite);
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& w, double eps, at::ScalarType type) {
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(type));
  kernel::rms_norm(out, x, w, eps);
  return out;
}

// [n, 2 I] -> [n, I]
at::Tensor activated(const at::Tensor& gate_up) {
  at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  kernel::swiglu(out, gate_up);
  return out;
}

}  // namespace

batch with_valid_anchors(const batch& tokens) {
  batch out = tokens;
  out.anchors.clear();
  out.anchor_valid.clear();
  out.prefix.clear();
  for (size_t a = 0; a < tokens.anchors.size(); ++a) {
    if (!tokens.anchor_valid[a]) continue;
    out.anchors.push_back(tokens.anchors[a]);
    out.anchor_valid.push_back(1);
    if (!tokens.prefix.empty()) out.prefix.push_back(tokens.prefix[a]);
  }
  return out;
}

pass_plan plan_pass(const drafter_config& c, const batch& tokens, const at::Device& device) {
  const size_t blocks = tokens.anchors.size(), b = static_cast<size_t>(c.block_size);
  const size_t rows = tokens.input_ids.size();
  pass_plan plan;
  plan.blocks = static_cast<int64_t>(blocks);
  std::vector<int32_t> ids(blocks * b, static_cast<int32_t>(c.mask_token_id));
  std::vector<int32_t> positions(blocks * b), queries;
  plan.layout = {.heads = c.heads,
                 .kv_heads = c.kv_heads,
                 .head_dim = c.head_dim,
                 .block_size = c.block_size,
                 .begin = std::vector<int32_t>(blocks),
                 .anchor = std::vector<int32_t>(blocks)};
  int32_t seen = 0;
  for (size_t a = 0; a < blocks; ++a) {
    const int32_t anchor = tokens.anchors[a];
    int32_t begin = 0;
    if (tokens.anchor_valid[a]) {
      const auto after =
          std::upper_bound(tokens.doc_offsets.begin(), tokens.doc_offsets.end(), anchor);
      begin = *(after - 1);
      seen = std::max(seen, anchor);
      plan.layout.begin[a] = begin;
      plan.layout.anchor[a] = anchor;
    }  // else: no context, so that the block sees itself alone (dflash.md 4.4)
    // The anchor, and what a variable prefix shows besides (it stays within the document).
    const size_t shown = tokens.prefix.empty() ? 1 : static_cast<size_t>(tokens.prefix[a]);
    for (size_t k = 0; k < shown; ++k)
      ids[a * b + k] = tokens.input_ids[static_cast<size_t>(anchor) + k];
    for (size_t k = 0; k < b; ++k) {
      positions[a * b + k] = anchor - begin + static_cast<int32_t>(k);
      if (k > 0) queries.push_back(positions[a * b + k]);
      plan.positions = std::max<int64_t>(plan.positions, positions[a * b + k] + 1);
    }
  }
  // Whole multiples of 64 rows: few distinct shapes, so that oneDNN's kernels are reused.
  plan.context = std::min<int64_t>(static_cast<int64_t>(rows), (seen + 63) / 64 * 64);
  std::vector<int32_t> context(static_cast<size_t>(plan.context));
  size_t doc = 0;
  for (size_t t = 0; t < context.size(); ++t) {
    while (tokens.doc_offsets[doc + 1] <= static_cast<int32_t>(t)) ++doc;
    context[t] = static_cast<int32_t>(t) - tokens.doc_offsets[doc];
    plan.positions = std::max<int64_t>(plan.positions, context[t] + 1);
  }
  plan.block_ids = upload(ids, device);
  plan.block_positions = upload(positions, device);
  plan.query_positions = upload(queries, device);
  plan.context_positions = upload(context, device);
  plan.layout.spans = kernel::spans_on(plan.layout, device);
  return plan;
}

void drafter_body::grow_rope(int64_t positions, const at::Tensor& like) {
  if (rope_.cos.defined() && rope_.cos.size(0) >= positions && rope_.cos.device() == like.device())
    return;
  rope_ = kernel::make_rope_table(
      (positions + 1023) / 1024 * 1024, config_.head_dim, config_.rope_theta);
  rope_.cos = rope_.cos.to(like.device());
  rope_.sin = rope_.sin.to(like.device());
}

pass_state drafter_body::forward(const pass_plan& plan,
                                 const std::vector<at::Tensor>& taps,
                                 const at::Tensor& embedding,
                                 stage_timer& timer) {
  DFLASH_CHECK(taps.size() == config_.taps.size(), "taps of the batch", taps.size());
  const auto type = weights_.fc.scalar_type();
  timer.reset();
  grow_rope(plan.positions, embedding);
  pass_state s;
  // One product per tap, summed in fp32: the concatenation never exists (dflash.md 2.4).
  s.context_raw = at::empty({plan.context, config_.hidden}, embedding.options().dtype(at::kFloat));
  for (size_t j = 0; j < taps.size(); ++j) {
    DFLASH_CHECK(taps[j].scalar_type() == type && taps[j].size(1) == config_.target_hidden,
                 "tap of another dtype or width");
    const at::Tensor w = weights_.fc.narrow(
        1, static_cast<int64_t>(j) * config_.target_hidden, config_.target_hidden);
    kernel::accumulate(s.context_raw, at::mm(taps[j].narrow(0, 0, plan.context), w.t()), j == 0);
  }
  s.context = norm(s.context_raw, weights_.hidden_norm, config_.rms_eps, type);
  timer.mark("forward.fc");
  at::Tensor h = at::index_select(embedding, 0, plan.block_ids);
  timer.mark("forward.embedding");
  s.layers.resize(static_cast<size_t>(config_.layers));
  s.layers[0].input = h;
  for (size_t i = 0; i < s.layers.size(); ++i) layer_forward(i, plan, s, timer);
  s.hidden = norm(s.output, weights_.norm, config_.rms_eps, type);
  timer.mark("forward.norms");
  return s;
}

void drafter_body::layer_forward(size_t i,
                                 const pass_plan& plan,
                                 pass_state& s,
                                 stage_timer& timer) {
  const auto stage = timer.within("layer forward", static_cast<int32_t>(i));
  const drafter_layer& w = weights_.layers[i];
  layer_state& l = s.layers[i];
  const auto type = weights_.fc.scalar_type();
  const double eps = config_.rms_eps;
  const int64_t kv = config_.kv_width(), hd = config_.head_dim;
  const bool last = i + 1 == s.layers.size();
  const at::Tensor kv_proj = joined(w.k_proj, w.v_proj);
  l.normed = norm(l.input, w.input_layernorm, eps, type);
  l.queries_in = last ? without_anchors(l.normed, plan.blocks) : l.normed;
  timer.mark("forward.norms");
  l.q_raw = at::mm(l.queries_in, w.q_proj.t());
  l.kv_raw = at::mm(l.normed, kv_proj.t());
  l.context_kv = at::mm(s.context, kv_proj.t());
  timer.mark("forward.qkv");
  const auto heads = [&](const at::Tensor& x, int64_t offset, int64_t count) {
    return x.narrow(1, offset, count * hd).unflatten(1, {count, hd});
  };
  const auto turned = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& at) {
    at::Tensor out = at::empty(x.sizes(), x.options());
    kernel::head_norm_rope(out, x, weight, rope_, at, eps);
    return out;
  };
  const at::Tensor& positions = last ? plan.query_positions : plan.block_positions;
  l.attention = {
      .q = turned(heads(l.q_raw, 0, config_.heads), w.q_norm, positions),
      .context_k =
          turned(heads(l.context_kv, 0, config_.kv_heads), w.k_norm, plan.context_positions),
      .context_v = heads(l.context_kv, kv, config_.kv_heads),
      .block_k = turned(heads(l.kv_raw, 0, config_.kv_heads), w.k_norm, plan.block_positions),
      .block_v = heads(l.kv_raw, kv, config_.kv_heads)};
  timer.mark("forward.rope");
  l.layout = plan.layout;
  l.layout.first_slot = last ? 1 : 0;
  l.layout.window = config_.sliding[i] ? config_.sliding_window : 0;
  l.layout.causal = config_.layer_causal(static_cast<int64_t>(i));
  l.attended = kernel::block_attention(l.layout, l.attention);
  timer.mark("forward.attention");
  const at::Tensor residual = last ? without_anchors(l.input, plan.blocks) : l.input;
  l.middle = at::addmm(residual, l.attended.out.flatten(1), w.o_proj.t());
  timer.mark("forward.o");
  l.middle_normed = norm(l.middle, w.post_attention_layernorm, eps, type);
  timer.mark("forward.norms");
  l.gate_up = at::mm(l.middle_normed, joined(w.gate_proj, w.up_proj).t());
  timer.mark("forward.mlp");
  const at::Tensor act = activated(l.gate_up);
  timer.mark("forward.swiglu");
  at::Tensor out = at::addmm(l.middle, act, w.down_proj.t());
  timer.mark("forward.mlp");
  if (last)
    s.output = out;
  else
    s.layers[i + 1].input = out;
}

void drafter_body::backward(const pass_plan& plan,
                            const std::vector<at::Tensor>& taps,
                            pass_state& s,
                            const at::Tensor& d_hidden,
                            drafter_weights& g,
                            bool overwrite,
                            stage_timer& timer,
                            const std::function<void(size_t)>& layer_done) {
  timer.reset();
  at::Tensor d = at::empty_like(d_hidden);
  kernel::rms_norm_backward(d, g.norm, d_hidden, s.output, weights_.norm, config_.rms_eps);
  timer.mark("backward.norms");
  at::Tensor d_context = at::zeros_like(s.context);
  for (size_t i = s.layers.size(); i-- > 0;) {
    d = layer_backward(i, plan, s, d, d_context, g, overwrite, timer);
    s.layers[i] = {};
    if (layer_done) layer_done(i);
  }
  // The block's input is the frozen embedding: the gradient ends there. The context ends in fc.
  at::Tensor d_fc = at::empty_like(s.context);
  kernel::rms_norm_backward(
      d_fc, g.hidden_norm, d_context, s.context_raw, weights_.hidden_norm, config_.rms_eps);
  timer.mark("backward.norms");
  for (size_t j = 0; j < taps.size(); ++j)
    weight_gradient(
        g.fc.narrow(1, static_cast<int64_t>(j) * config_.target_hidden, config_.target_hidden),
        d_fc,
        taps[j].narrow(0, 0, plan.context),
        overwrite);
  timer.mark("backward.fc");
}

at::Tensor drafter_body::layer_backward(size_t i,
                                        const pass_plan& plan,
                                        pass_state& s,
                                        at::Tensor d_output,
                                        at::Tensor& d_context,
                                        drafter_weights& gradient,
                                        bool overwrite,
                                        stage_timer& timer) {
  const auto stage = timer.within("layer backward", static_cast<int32_t>(i));
  const drafter_layer& w = weights_.layers[i];
  drafter_layer& g = gradient.layers[i];
  layer_state& l = s.layers[i];
  const double eps = config_.rms_eps;
  const int64_t kv = config_.kv_width(), hd = config_.head_dim;
  const bool last = i + 1 == s.layers.size();

  // MLP. The activation is made again: half a percent of the step, a tenth of what is kept for it.
  weight_gradient(g.down_proj, d_output, activated(l.gate_up), overwrite);
  const at::Tensor d_act = at::mm(d_output, w.down_proj);
  timer.mark("backward.mlp");
  kernel::swiglu_backward(l.gate_up, d_act, l.gate_up);  // in place: gate_up is not needed again
  timer.mark("backward.swiglu");
  weight_gradient(joined(g.gate_proj, g.up_proj), l.gate_up, l.middle_normed, overwrite);
  const at::Tensor d_middle_normed = at::mm(l.gate_up, joined(w.gate_proj, w.up_proj));
  timer.mark("backward.mlp");
  at::Tensor d_middle = at::empty_like(d_output);
  kernel::rms_norm_backward(d_middle,
                            g.post_attention_layernorm,
                            d_middle_normed,
                            l.middle,
                            w.post_attention_layernorm,
                            eps,
                            d_output);
  timer.mark("backward.norms");

  // Attention
  weight_gradient(g.o_proj, d_middle, l.attended.out.flatten(1), overwrite);
  const at::Tensor d_attended = at::mm(d_middle, w.o_proj);
  timer.mark("backward.o");
  const kernel::attention_gradients d = kernel::block_attention_backward(
      l.layout, l.attention, l.attended, d_attended.unflatten(1, {config_.heads, hd}));
  timer.mark("backward.attention");
  const auto heads = [&](const at::Tensor& x, int64_t offset, int64_t count) {
    return x.narrow(1, offset, count * hd).unflatten(1, {count, hd});
  };
  // The gradients at q_proj, k_proj and v_proj take the place of what these had put out.
  const auto turn_back = [&](at::Tensor x,
                             at::Tensor& d_weight,
                             const at::Tensor& dy,
                             const at::Tensor& weight,
                             const at::Tensor& positions) {
    kernel::head_norm_rope_backward(x, d_weight, dy, x, weight, rope_, positions, eps);
  };
  turn_back(heads(l.q_raw, 0, config_.heads),
            g.q_norm,
            d.q,
            w.q_norm,
            last ? plan.query_positions : plan.block_positions);
  turn_back(
      heads(l.kv_raw, 0, config_.kv_heads), g.k_norm, d.block_k, w.k_norm, plan.block_positions);
  turn_back(heads(l.context_kv, 0, config_.kv_heads),
            g.k_norm,
            d.context_k,
            w.k_norm,
            plan.context_positions);
  l.kv_raw.narrow(1, kv, kv).copy_(d.block_v.flatten(1));
  l.context_kv.narrow(1, kv, kv).copy_(d.context_v.flatten(1));
  timer.mark("backward.rope");
  const at::Tensor kv_proj = joined(w.k_proj, w.v_proj);
  const at::Tensor d_kv_proj = joined(g.k_proj, g.v_proj);
  weight_gradient(g.q_proj, l.q_raw, l.queries_in, overwrite);
  weight_gradient(d_kv_proj, l.kv_raw, l.normed, overwrite);
  weight_gradient(d_kv_proj, l.context_kv, s.context, false);
  at::addmm_out(d_context, d_context, l.context_kv, kv_proj);
  at::Tensor d_normed = at::mm(l.kv_raw, kv_proj);
  at::Tensor d_input = last ? at::zeros_like(l.input) : d_middle;
  if (last) {
    const int64_t b = config_.block_size;
    const auto asking = [&](at::Tensor& x) {
      return x.view({plan.blocks, b, x.size(1)}).narrow(1, 1, b - 1);
    };
    const auto like_blocks = [&](const at::Tensor& x) {
      return x.view({plan.blocks, b - 1, x.size(1)});
    };
    asking(d_normed).add_(like_blocks(at::mm(l.q_raw, w.q_proj)));
    asking(d_input).copy_(like_blocks(d_middle));
  } else {
    at::addmm_out(d_normed, d_normed, l.q_raw, w.q_proj);
  }
  timer.mark("backward.qkv");
  at::Tensor dx = i == 0 ? at::Tensor() : at::empty_like(d_input);
  kernel::rms_norm_backward(
      dx, g.input_layernorm, d_normed, l.input, w.input_layernorm, eps, d_input);
  timer.mark("backward.norms");
  return dx;
}

}  // namespace dflash

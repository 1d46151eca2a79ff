// Reading a target from its folder: names and shapes of its tensors as config.json implies them,
// the rule of the tied head, fusion of the projections that share an input.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>

#include "config/error.hpp"
#include "device/lane_streams.hpp"
#include "model/families/family.hpp"
#include "model/folder.hpp"
#include "model/target.hpp"

namespace dflash {
namespace {

constexpr std::array<spare_rule, 1> always_spare = {
    {{"*.rotary_emb.inv_freq", "rotary frequencies are computed"}}};

struct source {
  model_folder& folder;
  const target_config& config;
  at::ScalarType type;
  at::Device device;
  std::string prefix;  // of the part that is read

  bool has(const std::string& name) const { return folder.has(prefix + name); }
  source inside(const std::string& name) const {
    return {folder, config, type, device, prefix + name + "."};
  }
  at::Tensor load(const std::string& name, at::IntArrayRef shape, at::ScalarType as) const {
    return folder.load(prefix + name, shape, as).to(device);
  }
  at::Tensor matrix(const std::string& name, int64_t n, int64_t k) const {
    return load(name + ".weight", {n, k}, type);
  }
  at::Tensor bias(const std::string& name, int64_t n) const {
    return load(name + ".bias", {n}, type);
  }
  at::Tensor vector(const std::string& name, int64_t n) const {
    return load(name, {n}, at::kFloat);
  }
  // What the normed values are multiplied by.
  at::Tensor norm(const std::string& name, int64_t n) const {
    const auto stored = vector(name + ".weight", n);
    return config.norms_from_one ? stored.add(1.0) : stored;
  }
};

packed_linear packed(const at::Tensor& weight) {
  return packed_linear(weight.contiguous(), plain_weight::drop);
}

// Rows of a gated q_proj, query and gate of each head in turn, as all queries and all gates.
std::pair<at::Tensor, at::Tensor> split_gate(const target_config& c, const at::Tensor& stored) {
  auto shape = stored.sizes().vec();
  shape[0] = c.heads * c.head_dim;
  const auto parts = stored.unflatten(0, {c.heads, 2, c.head_dim});
  return {parts.select(1, 0).reshape(shape), parts.select(1, 1).reshape(shape)};
}

attention_weights load_attention(const source& from) {
  const auto& c = from.config;
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const auto fused = [&](at::Tensor query, const at::Tensor& key, const at::Tensor& value) {
    if (!c.attention_gate) return at::cat({query, key, value});
    auto [queries, gates] = split_gate(c, query);
    return at::cat({queries, key, value, gates});
  };
  const int64_t q_rows = c.attention_gate ? 2 * q : q;
  attention_weights w;
  // One after the other, so that of several faults the first is named.
  const auto query = from.matrix("q_proj", q_rows, c.hidden);
  const auto key = from.matrix("k_proj", kv, c.hidden);
  w.qkv = packed(fused(query, key, from.matrix("v_proj", kv, c.hidden)));
  if (c.qkv_bias) {
    const auto query_bias = from.bias("q_proj", q_rows), key_bias = from.bias("k_proj", kv);
    w.qkv_bias = fused(query_bias, key_bias, from.bias("v_proj", kv));
  }
  if (c.head_norms) {
    w.q_norm = from.norm("q_norm", c.head_dim);
    w.k_norm = from.norm("k_norm", c.head_dim);
  }
  w.o = packed(from.matrix("o_proj", c.hidden, q));
  if (c.out_bias) w.o_bias = from.bias("o_proj", c.hidden);
  return w;
}

linear_weights load_linear(const source& from) {
  const auto& c = from.config;
  const auto& l = c.linear;
  linear_weights w;
  w.in = packed(at::cat({from.matrix("in_proj_qkv", l.channels(), c.hidden),
                         from.matrix("in_proj_z", l.value_width(), c.hidden),
                         from.matrix("in_proj_b", l.value_heads, c.hidden),
                         from.matrix("in_proj_a", l.value_heads, c.hidden)}));
  w.conv =
      from.load("conv1d.weight", {l.channels(), 1, l.taps}, at::kFloat).squeeze(1).t().contiguous();
  w.decay_bias = from.vector("dt_bias", l.value_heads);
  w.decay = at::exp(from.vector("A_log", l.value_heads)).neg();
  w.norm = from.vector("norm.weight", l.value_dim);
  w.out = packed(from.matrix("out_proj", c.hidden, l.value_width()));
  return w;
}

mlp_weights load_mlp(const source& from, int64_t width) {
  const auto& c = from.config;
  mlp_weights w;
  w.gate_up = packed(at::cat(
      {from.matrix("gate_proj", width, c.hidden), from.matrix("up_proj", width, c.hidden)}));
  w.down = packed(from.matrix("down_proj", c.hidden, width));
  if (c.mlp_bias) {
    w.gate_up_bias = at::cat({from.bias("gate_proj", width), from.bias("up_proj", width)});
    w.down_bias = from.bias("down_proj", c.hidden);
  }
  return w;
}

// Experts one by one, or all in one tensor: both forms are published.
expert_weights load_experts(const source& from) {
  const auto& c = from.config;
  const auto& e = c.experts;
  expert_weights w;
  w.router = from.matrix("gate", e.count, c.hidden);
  if (from.has("experts.gate_up_proj")) {
    const auto gate_up =
        from.load("experts.gate_up_proj", {e.count, 2 * e.intermediate, c.hidden}, from.type);
    const auto down =
        from.load("experts.down_proj", {e.count, c.hidden, e.intermediate}, from.type);
    for (int64_t i = 0; i < e.count; ++i)
      w.experts.push_back({packed(gate_up[i].clone()), packed(down[i].clone()), {}, {}});
  } else {
    for (int64_t i = 0; i < e.count; ++i)
      w.experts.push_back(load_mlp(from.inside("experts." + std::to_string(i)), e.intermediate));
  }
  if (e.shared_intermediate > 0) {
    w.shared = load_mlp(from.inside("shared_expert"), e.shared_intermediate);
    w.shared_gate = from.matrix("shared_expert_gate", 1, c.hidden);
  }
  return w;
}

target_layer load_layer(const source& from, int64_t i) {
  const auto& c = from.config;
  target_layer layer;
  layer.before_mixer = from.norm("input_layernorm", c.hidden);
  if (c.norms_after) {
    layer.after_mixer = from.norm("post_attention_layernorm", c.hidden);
    layer.before_mlp = from.norm("pre_feedforward_layernorm", c.hidden);
    layer.after_mlp = from.norm("post_feedforward_layernorm", c.hidden);
  } else {
    layer.before_mlp = from.norm("post_attention_layernorm", c.hidden);
  }
  if (c.kind(i) == layer_kind::linear)
    layer.linear = load_linear(from.inside("linear_attn"));
  else
    layer.attention = load_attention(from.inside("self_attn"));
  if (c.has_experts(i))
    layer.experts = load_experts(from.inside("mlp"));
  else
    layer.mlp = load_mlp(from.inside("mlp"), c.intermediate);
  return layer;
}

// The stored tensors decide what is tied; the key only says whether a head may be missing.
at::Tensor load_head(const source& from, const family& f, const at::Tensor& embedding) {
  const auto& c = from.config;
  const auto path = from.folder.path().string();
  for (const auto name : f.heads) {
    if (!from.folder.has(name)) continue;
    const auto stored = from.folder.load(name, {c.vocab, c.hidden}, from.type).to(from.device);
    if (at::equal(stored, embedding)) return embedding;
    if (c.tied)
      spdlog::warn(
          "{}: tie_word_embeddings is true, but {} differs from the embedding: the stored "
          "{} is used as head",
          path,
          name,
          name);
    return stored;
  }
  if (!c.tied)
    throw error(fmt::format("the tensor {} is missing and tie_word_embeddings is not true",
                            f.heads.front()),
                path,
                "fetch the model again; set tie_word_embeddings if the head is tied");
  return embedding;
}

// Where the language model lies in the folder. Without any embedding, the first place is missed by
// name.
std::string prefix_of(const model_folder& folder, const family& f) {
  for (const auto prefix : f.prefixes)
    if (folder.has(std::string(prefix) + "embed_tokens.weight")) return std::string(prefix);
  return std::string(f.prefixes.front());
}

}  // namespace

std::shared_ptr<const target> target::load(const std::filesystem::path& path,
                                           compute_dtype dtype,
                                           at::Device device,
                                           target_parts parts) {
  auto folder = model_folder::open(path);
  const family& f = family_of(folder.config());
  const std::shared_ptr<target> model(new target());
  const auto& c = model->config_ = read_target_config(path);
  for (const auto& note : c.notes) spdlog::warn("{}", note);
  model->dtype_ = dtype;
  const source from{folder, c, scalar_type(dtype), device, prefix_of(folder, f)};
  model->embedding_ = from.matrix("embed_tokens", c.vocab, c.hidden);
  model->final_norm_ = from.norm("norm", c.hidden);
  for (int64_t i = 0; i < c.layers && parts == target_parts::all; ++i)
    model->layers_.push_back(load_layer(from.inside("layers." + std::to_string(i)), i));
  model->head_ = packed_linear(load_head(from, f, model->embedding_), plain_weight::keep);
  std::vector<spare_rule> spare(always_spare.begin(), always_spare.end());
  spare.insert(spare.end(), f.spare.begin(), f.spare.end());
  if (parts == target_parts::all) folder.finish(spare);
  model->rope_ = make_rope(c.rope, c.rotary_dims());
  model->sliding_rope_ = make_rope(c.sliding_rope, c.rotary_dims());
  model->content_hash_ = folder.content_hash();
  wait_for(device);  // other threads are going to use it
  return model;
}

}  // namespace dflash

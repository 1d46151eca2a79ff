// Reading a target from its folder: names and shapes of the Llama family's tensors, the rule of the
// tied head, fusion of the projections that share an input.
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cmath>

#include "config/error.hpp"
#include "model/folder.hpp"
#include "model/target.hpp"

namespace dflash {
namespace {

constexpr std::array<spare_rule, 2> llama_spare = {{
    {"model.layers.*.self_attn.rotary_emb.inv_freq", "rotary frequencies are computed"},
    {"model.rotary_emb.inv_freq", "rotary frequencies are computed"},
}};

}  // namespace

std::shared_ptr<const target> target::load(const std::filesystem::path& path,
                                           compute_dtype dtype,
                                           at::Device device,
                                           target_parts parts) {
  auto folder = model_folder::open(path);
  const std::shared_ptr<target> model(new target());
  const auto c = model->config_ = read_target_config(path);
  const auto type = scalar_type(dtype);
  model->dtype_ = dtype;
  const auto load = [&](const std::string& name, at::IntArrayRef shape, at::ScalarType as) {
    return folder.load(name, shape, as).to(device);
  };
  model->embedding_ = load("model.embed_tokens.weight", {c.vocab, c.hidden}, type);
  model->final_norm_ = load("model.norm.weight", {c.hidden}, at::kFloat);
  for (int64_t i = 0; i < c.layers && parts == target_parts::all; ++i) {
    const auto prefix = "model.layers." + std::to_string(i) + ".";
    const auto matrix = [&](const char* name, int64_t n, int64_t k) {
      return load(prefix + name + ".weight", {n, k}, type);
    };
    const auto norm = [&](const char* name) {
      return load(prefix + name + ".weight", {c.hidden}, at::kFloat);
    };
    const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    layer layer;
    layer.input_norm = norm("input_layernorm");
    layer.post_attention_norm = norm("post_attention_layernorm");
    layer.qkv = packed_linear(at::cat({matrix("self_attn.q_proj", q, c.hidden),
                                       matrix("self_attn.k_proj", kv, c.hidden),
                                       matrix("self_attn.v_proj", kv, c.hidden)}),
                              plain_weight::drop);
    layer.o = packed_linear(matrix("self_attn.o_proj", c.hidden, q), plain_weight::drop);
    layer.gate_up = packed_linear(at::cat({matrix("mlp.gate_proj", c.intermediate, c.hidden),
                                           matrix("mlp.up_proj", c.intermediate, c.hidden)}),
                                  plain_weight::drop);
    layer.down =
        packed_linear(matrix("mlp.down_proj", c.hidden, c.intermediate), plain_weight::drop);
    model->layers_.push_back(std::move(layer));
  }
  // The stored tensors decide what is tied; the key only says whether a head may be missing.
  auto head = model->embedding_;
  if (folder.has("lm_head.weight")) {
    const auto stored = load("lm_head.weight", {c.vocab, c.hidden}, type);
    if (!at::equal(stored, head)) {
      if (c.tied)
        spdlog::warn(
            "{}: tie_word_embeddings is true, but lm_head.weight differs from the embedding: "
            "the stored lm_head.weight is used as head",
            path.string());
      head = stored;
    }
  } else if (!c.tied) {
    throw error("the tensor lm_head.weight is missing and tie_word_embeddings is not true",
                path.string(),
                "fetch the model again; set tie_word_embeddings if the head is tied");
  }
  if (parts == target_parts::all) folder.finish(llama_spare);
  model->head_ = packed_linear(head, plain_weight::keep);
  for (int64_t i = 0; i < c.head_dim / 2; ++i)
    model->inverse_frequencies_.push_back(static_cast<float>(
        1.0 /
        std::pow(c.rope_theta, 2.0 * static_cast<double>(i) / static_cast<double>(c.head_dim))));
  model->content_hash_ = folder.content_hash();
  return model;
}

}  // namespace dflash

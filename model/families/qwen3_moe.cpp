#include <algorithm>

#include "config/error.hpp"
#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_shape(r, {.kv_heads = 4, .positions = 32768}, c);
  read_activation(r, "hidden_act", "silu", c);
  c.qkv_bias = c.out_bias = r.flag("attention_bias", false);
  c.head_norms = true;
  // Unlike Qwen3, all layers slide or none does.
  const bool slides = r.flag("use_sliding_window", false);
  if (slides) c.sliding_window = r.size("sliding_window", 4096);
  c.kinds.assign(static_cast<size_t>(c.layers), slides ? layer_kind::sliding : layer_kind::full);
  c.rope = c.sliding_rope = read_rope(r, {}, c.max_positions, c.notes);
  read_experts(r, c);
  c.experts.normalised = r.flag("norm_topk_prob", false);
  const int64_t step = r.size("decoder_sparse_step", 1);
  const auto plain = r.file().get_ints(r.key("mlp_only_layers"));
  for (int64_t i = 0; i < c.layers; ++i)
    c.experts.layers.push_back((i + 1) % step == 0 &&
                               std::find(plain.begin(), plain.end(), i) == plain.end());
  const auto& sparse = c.experts.layers;
  const bool some_dense = std::find(sparse.begin(), sparse.end(), false) != sparse.end();
  c.intermediate = some_dense ? r.size("intermediate_size") : r.size("intermediate_size", 6144);
}

}  // namespace

const family& qwen3_moe_family() {
  static const family f = {.name = "Qwen3-MoE",
                           .architectures = {"Qwen3MoeForCausalLM"},
                           .model_types = {"qwen3_moe"},
                           .prefixes = {"model."},
                           .heads = {"lm_head.weight"},
                           .spare = {},
                           .read = read};
  return f;
}

}  // namespace dflash

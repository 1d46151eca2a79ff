#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_shape(r, {}, c);
  c.intermediate = r.size("intermediate_size");
  read_activation(r, "hidden_act", "silu", c);
  c.qkv_bias = c.out_bias = r.flag("attention_bias", false);
  c.mlp_bias = r.flag("mlp_bias", false);
  c.rope = read_rope(r, {}, c.max_positions, c.notes);
}

}  // namespace

const family& llama_family() {
  static const family f = {.name = "Llama",
                           .architectures = {"LlamaForCausalLM"},
                           .model_types = {"llama"},
                           .prefixes = {"model."},
                           .heads = {"lm_head.weight"},
                           .spare = {},
                           .read = read};
  return f;
}

}  // namespace dflash

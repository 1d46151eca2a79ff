#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_shape(r, {.head_dim = 128, .positions = 32768}, c);
  c.intermediate = r.size("intermediate_size");
  read_activation(r, "hidden_act", "silu", c);
  c.qkv_bias = c.out_bias = r.flag("attention_bias", false);
  c.head_norms = true;
  read_qwen_windows(r, c);
  c.rope = c.sliding_rope = read_rope(r, {}, c.max_positions, c.notes);
}

}  // namespace

const family& qwen3_family() {
  static const family f = {.name = "Qwen3",
                           .architectures = {"Qwen3ForCausalLM"},
                           .model_types = {"qwen3"},
                           .prefixes = {"model."},
                           .heads = {"lm_head.weight"},
                           .spare = {},
                           .read = read};
  return f;
}

}  // namespace dflash

#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_shape(r, {.positions = 32768}, c);
  c.intermediate = r.size("intermediate_size");
  read_activation(r, "hidden_act", "silu", c);
  c.qkv_bias = true;
  read_qwen_windows(r, c);
  c.rope = c.sliding_rope = read_rope(r, {}, c.max_positions, c.notes);
}

}  // namespace

const family& qwen2_family() {
  static const family f = {.name = "Qwen2",
                           .architectures = {"Qwen2ForCausalLM"},
                           .model_types = {"qwen2"},
                           .prefixes = {"model."},
                           .heads = {"lm_head.weight"},
                           .spare = {},
                           .read = read};
  return f;
}

}  // namespace dflash

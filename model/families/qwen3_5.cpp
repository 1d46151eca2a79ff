// Qwen3.5 and Qwen3.6: Gated DeltaNet layers with a gated attention layer at regular intervals.
#include <fmt/format.h>

#include "config/error.hpp"
#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_qwen3_5(r, c);
  c.intermediate = r.size("intermediate_size", 12288);
}

}  // namespace

void read_qwen3_5(const config_reader& r, target_config& c) {
  read_shape(r, {.head_dim = 256, .positions = 32768}, c);
  read_activation(r, "hidden_act", "silu", c);
  c.qkv_bias = c.out_bias = r.flag("attention_bias", false);
  c.head_norms = c.norms_from_one = c.attention_gate = true;
  if (!r.flag("attn_output_gate", true))
    r.refuse("attn_output_gate", "attention without its gate is not supported in this family");
  const auto pattern = [](int64_t layer, int64_t every) {
    return (layer + 1) % every == 0 ? layer_kind::full : layer_kind::linear;
  };
  read_layer_kinds(r, pattern, r.size("full_attention_interval", 4), c);
  for (const auto kind : c.kinds)
    if (kind == layer_kind::sliding)
      r.refuse("layer_types", "sliding layers are not supported in this family");
  c.linear = {.key_heads = r.size("linear_num_key_heads", 16),
              .value_heads = r.size("linear_num_value_heads", 32),
              .key_dim = r.size("linear_key_head_dim", 128),
              .value_dim = r.size("linear_value_head_dim", 128),
              .taps = r.size("linear_conv_kernel_dim", 4)};
  if (c.linear.value_heads % c.linear.key_heads != 0)
    throw error(fmt::format("linear_num_value_heads {} is not a multiple of {} "
                            "linear_num_key_heads",
                            c.linear.value_heads,
                            c.linear.key_heads),
                r.where("linear_num_value_heads"));
  c.rope = read_rope(r, {.partial = 0.25, .may_be_partial = true}, c.max_positions, c.notes);
  if (c.rotary_dims() < 2)
    r.refuse(
        "head_dim",
        fmt::format(
            "a share of {} of {} dimensions leaves nothing to rotate", c.rope.partial, c.head_dim));
}

const family& qwen3_5_family() {
  static const family f = {
      .name = "Qwen3.5",
      .architectures = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
      .model_types = {"qwen3_5_text", "qwen3_5"},
      .prefixes = {"model.", "model.language_model."},
      .heads = {"lm_head.weight"},
      .spare = {{"model.visual.*", "images are not read"},
                {"mtp.*", "multi-token prediction is not read"}},
      .read = read};
  return f;
}

}  // namespace dflash

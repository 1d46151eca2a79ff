#include <cmath>

#include "config/error.hpp"
#include "model/families/family.hpp"

namespace dflash {
namespace {

constexpr double global_theta = 1e6, local_theta = 1e4;

// transformers 5 states one object for each kind of layer; before, the base of sliding layers had a
// key of its own and rope_scaling was of the full ones.
void read_positions(const config_reader& r, target_config& c) {
  const std::string full = "rope_parameters.full_attention",
                    sliding = "rope_parameters.sliding_attention";
  if (r.has(full) || r.has(sliding)) {
    c.rope = read_rope_block(r, full, global_theta, c.max_positions, c.notes);
    c.sliding_rope = read_rope_block(r, sliding, local_theta, c.max_positions, c.notes);
  } else {
    c.rope = read_rope(r, {.theta = global_theta}, c.max_positions, c.notes);
    c.sliding_rope.theta = r.real("rope_local_base_freq", local_theta);
    if (!(c.sliding_rope.theta > 0))
      throw error("rope_local_base_freq must be above 0", r.where("rope_local_base_freq"));
  }
}

void read(const config_reader& r, target_config& c) {
  read_shape(r,
             {.hidden = 2304,
              .layers = 26,
              .heads = 8,
              .vocab = 262208,
              .kv_heads = 4,
              .head_dim = 256,
              .positions = 131072,
              .tied = true},
             c);
  c.intermediate = r.size("intermediate_size", 9216);
  read_activation(r, "hidden_activation", "gelu_pytorch_tanh", c);
  c.qkv_bias = c.out_bias = r.flag("attention_bias", false);
  c.head_norms = c.norms_from_one = c.norms_after = true;
  c.embedding_scale = std::sqrt(static_cast<double>(c.hidden));
  const double scalar = r.real("query_pre_attn_scalar", 256);
  if (!(scalar > 0))
    throw error("query_pre_attn_scalar must be above 0", r.where("query_pre_attn_scalar"));
  c.attention_scale = 1 / std::sqrt(scalar);
  c.logit_cap = r.real("final_logit_softcapping", 0);
  if (c.logit_cap < 0)
    throw error("final_logit_softcapping is negative", r.where("final_logit_softcapping"));
  if (r.real("attn_logit_softcapping", 0) != 0)
    r.refuse("attn_logit_softcapping", "soft-capped attention scores are not supported");
  if (r.flag("use_bidirectional_attention", false))
    r.refuse("use_bidirectional_attention", "attention to later tokens is not supported");
  const auto pattern = [](int64_t layer, int64_t every) {
    return (layer + 1) % every == 0 ? layer_kind::full : layer_kind::sliding;
  };
  read_layer_kinds(r, pattern, r.size("sliding_window_pattern", 6), c);
  c.sliding_window = r.size("sliding_window", 4096);
  read_positions(r, c);
}

}  // namespace

const family& gemma3_family() {
  static const family f = {.name = "Gemma 3",
                           .architectures = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
                           .model_types = {"gemma3_text", "gemma3"},
                           .prefixes = {"model.", "model.language_model.", "language_model.model."},
                           .heads = {"lm_head.weight", "language_model.lm_head.weight"},
                           .spare = {{"vision_tower.*", "images are not read"},
                                     {"model.vision_tower.*", "images are not read"},
                                     {"multi_modal_projector.*", "images are not read"},
                                     {"model.multi_modal_projector.*", "images are not read"}},
                           .read = read};
  return f;
}

}  // namespace dflash

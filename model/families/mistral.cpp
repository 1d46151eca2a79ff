#include <algorithm>

#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_shape(r, {.kv_heads = 8, .positions = 4096 * 32}, c);
  c.intermediate = r.size("intermediate_size");
  read_activation(r, "hidden_act", "silu", c);
  // Absent: the window of the class; null: none.
  c.sliding_window =
      r.states("sliding_window") && !r.has("sliding_window") ? 0 : r.size("sliding_window", 4096);
  const auto kind = c.sliding_window > 0 ? layer_kind::sliding : layer_kind::full;
  const auto all_alike = [](int64_t, int64_t slides) {
    return slides != 0 ? layer_kind::sliding : layer_kind::full;
  };
  read_layer_kinds(r, all_alike, c.sliding_window > 0 ? 1 : 0, c);
  // transformers takes no notice of the list in this class.
  if (std::any_of(c.kinds.begin(), c.kinds.end(), [&](layer_kind k) { return k != kind; }))
    r.refuse("layer_types", "layers that do not all have sliding_window are not supported");
  c.rope = c.sliding_rope = read_rope(r, {}, c.max_positions, c.notes);
}

}  // namespace

const family& mistral_family() {
  static const family f = {.name = "Mistral",
                           .architectures = {"MistralForCausalLM"},
                           .model_types = {"mistral"},
                           .prefixes = {"model."},
                           .heads = {"lm_head.weight"},
                           .spare = {},
                           .read = read};
  return f;
}

}  // namespace dflash

#include "model/families/family.hpp"

namespace dflash {
namespace {

void read(const config_reader& r, target_config& c) {
  read_qwen3_5(r, c);
  read_experts(r, c);
  c.experts.normalised = true;
  c.experts.shared_intermediate = r.size("shared_expert_intermediate_size", 512);
  if (!r.file().get_ints(r.key("mlp_only_layers")).empty())
    r.refuse("mlp_only_layers", "layers without experts are not supported in this family");
  c.experts.layers.assign(static_cast<size_t>(c.layers), true);
}

}  // namespace

const family& qwen3_5_moe_family() {
  static const family f = {
      .name = "Qwen3.5-MoE",
      .architectures = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
      .model_types = {"qwen3_5_moe_text", "qwen3_5_moe"},
      .prefixes = qwen3_5_family().prefixes,
      .heads = qwen3_5_family().heads,
      .spare = qwen3_5_family().spare,
      .read = read};
  return f;
}

}  // namespace dflash

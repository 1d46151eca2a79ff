// A family of targets: how its config.json is read and what its folders may hold. Attention, rotary
// positions, cache, experts and linear layers are shared code that looks at target_config only; a
// family adds a file here, and its line in the registry.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/config_reader.hpp"
#include "model/spare_rule.hpp"
#include "model/target_config.hpp"

namespace dflash {

struct family {
  std::string_view name;                        // as people say it: "Qwen3"
  std::vector<std::string_view> architectures;  // first entry of that list in config.json
  std::vector<std::string_view> model_types;    // decide where no architecture is given
  // Tensor names begin with one of these, whichever the folder holds, then "layers.0...".
  std::vector<std::string_view> prefixes;
  std::vector<std::string_view> heads;  // names of a stored head
  std::vector<spare_rule> spare;        // besides rotary frequencies
  void (*read)(const config_reader& reader, target_config& out);
};

const family& llama_family();
const family& mistral_family();
const family& qwen2_family();
const family& qwen3_family();
const family& qwen3_moe_family();
const family& gemma3_family();
const family& qwen3_5_family();
const family& qwen3_5_moe_family();

// All of them, in the order of docs/targets.md.
std::span<const family* const> families();

// The family that `architectures` or `model_type` names; throws dflash::error with the list of the
// known ones.
const family& family_of(const json_file& config);

// What several families share.
struct shape_defaults {  // of the class; 0: the key is required
  int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, vocab = 0;
  int64_t kv_heads = 0;  // 0: as heads
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t positions = 2048;
  bool tied = false;
};
void read_shape(const config_reader& reader, const shape_defaults& defaults, target_config& out);
void read_activation(const config_reader& reader,
                     std::string_view name,
                     std::string_view expected,
                     target_config& out);
// layer_types if given, else `otherwise` for each layer.
void read_layer_kinds(const config_reader& reader,
                      layer_kind (*otherwise)(int64_t layer, int64_t every),
                      int64_t every,
                      target_config& out);
// use_sliding_window, sliding_window, max_window_layers and layer_types of Qwen2 and Qwen3.
void read_qwen_windows(const config_reader& reader, target_config& out);
// Sizes of the experts, for the layers in out.experts.layers.
void read_experts(const config_reader& reader, target_config& out);
// Hybrid layers, gated attention and partly rotated heads of Qwen3.5.
void read_qwen3_5(const config_reader& reader, target_config& out);

}  // namespace dflash

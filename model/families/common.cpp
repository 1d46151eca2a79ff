// Keys that families share.
#include <fmt/format.h>

#include <algorithm>

#include "config/error.hpp"
#include "model/families/family.hpp"

namespace dflash {
namespace {

// Longer contexts than this exist nowhere; numbers above it mean "no limit".
constexpr int64_t most_positions = int64_t{1} << 30;

int64_t head_dim_of(const config_reader& r, const target_config& c, int64_t fallback) {
  if (r.has("head_dim")) return r.size("head_dim");
  if (fallback != 0) return fallback;
  if (c.hidden % c.heads != 0)
    throw error(fmt::format("hidden_size {} is not a multiple of {} num_attention_heads and "
                            "head_dim is absent",
                            c.hidden,
                            c.heads),
                r.where("num_attention_heads"),
                "state head_dim");
  return c.hidden / c.heads;
}

void check_heads(const config_reader& r, const target_config& c) {
  if (c.heads % c.kv_heads != 0)
    throw error(fmt::format("{} num_attention_heads are not a multiple of {} num_key_value_heads",
                            c.heads,
                            c.kv_heads),
                r.where("num_key_value_heads"));
  if (c.head_dim % 2 != 0 || c.head_dim > 256)
    r.refuse(r.has("head_dim") ? "head_dim" : "hidden_size",
             fmt::format("heads of {} dimensions are not supported (even, <= 256)", c.head_dim));
  if (c.heads / c.kv_heads > 32)
    r.refuse("num_key_value_heads", "more than 32 query heads a key head are not supported");
}

}  // namespace

void read_shape(const config_reader& r, const shape_defaults& d, target_config& c) {
  c.hidden = r.size("hidden_size", d.hidden);
  c.layers = r.size("num_hidden_layers", d.layers);
  c.heads = r.size("num_attention_heads", d.heads);
  c.kv_heads = r.size("num_key_value_heads", d.kv_heads == 0 ? c.heads : d.kv_heads);
  c.vocab = r.size("vocab_size", d.vocab);
  c.head_dim = head_dim_of(r, c, d.head_dim);
  check_heads(r, c);
  const std::string limit = r.key("max_position_embeddings");
  c.max_positions = r.file().get_limit(limit, d.positions, most_positions);
  if (c.max_positions < 1)
    throw error(fmt::format("max_position_embeddings is {}", c.max_positions),
                r.where("max_position_embeddings"));
  c.rms_eps = r.real("rms_norm_eps", 1e-6);
  if (!(c.rms_eps >= 0 && c.rms_eps < 1))
    throw error(fmt::format("rms_norm_eps is {}, expected a small number >= 0", c.rms_eps),
                r.where("rms_norm_eps"));
  c.tied = r.file().get_bool(r.outer_or_own("tie_word_embeddings"), d.tied);
}

void read_activation(const config_reader& r,
                     std::string_view name,
                     std::string_view expected,
                     target_config& c) {
  const auto given = r.text(name, std::string(expected));
  if (given != expected)
    r.refuse(name, fmt::format("the activation \"{}\" is not supported in this family", given));
  c.act = expected == "silu" ? activation::silu : activation::gelu_tanh;
}

void read_layer_kinds(const config_reader& r,
                      layer_kind (*otherwise)(int64_t layer, int64_t every),
                      int64_t every,
                      target_config& c) {
  const auto names = r.file().get_strings(r.key("layer_types"));
  if (names.empty()) {
    for (int64_t i = 0; i < c.layers; ++i) c.kinds.push_back(otherwise(i, every));
  } else if (static_cast<int64_t>(names.size()) != c.layers) {
    throw error(fmt::format("layer_types has {} entries for {} layers", names.size(), c.layers),
                r.where("layer_types"),
                "take the file that belongs to this model");
  }
  for (const auto& name : names) {
    if (name == "full_attention")
      c.kinds.push_back(layer_kind::full);
    else if (name == "sliding_attention")
      c.kinds.push_back(layer_kind::sliding);
    else if (name == "linear_attention")
      c.kinds.push_back(layer_kind::linear);
    else
      r.refuse("layer_types", fmt::format("layers of type \"{}\" are not supported", name));
  }
}

void read_qwen_windows(const config_reader& r, target_config& c) {
  const bool slides = r.flag("use_sliding_window", false);
  c.sliding_window = slides && !(r.states("sliding_window") && !r.has("sliding_window"))
                         ? r.size("sliding_window", 4096)
                         : 0;
  const auto from_layer = [](int64_t layer, int64_t first) {
    return layer >= first ? layer_kind::sliding : layer_kind::full;
  };
  const int64_t first =
      c.sliding_window == 0 ? c.layers : r.file().get_int(r.key("max_window_layers"), 28);
  read_layer_kinds(r, from_layer, first, c);
}

void read_experts(const config_reader& r, target_config& c) {
  auto& e = c.experts;
  e.count = r.size(r.has("num_local_experts") && !r.has("num_experts") ? "num_local_experts"
                                                                       : "num_experts");
  e.per_token = r.size("num_experts_per_tok");
  e.intermediate = r.size("moe_intermediate_size");
  if (e.per_token > e.count)
    throw error(fmt::format("num_experts_per_tok {} is above num_experts {}", e.per_token, e.count),
                r.where("num_experts_per_tok"));
}

}  // namespace dflash

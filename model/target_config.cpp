#include "model/target_config.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "config/error.hpp"

namespace dflash {
namespace {

// Longer contexts than this exist nowhere; numbers above it mean "no limit".
constexpr int64_t most_positions = int64_t{1} << 30;

int64_t positive(const json_file& file, std::string_view key, int64_t value) {
  // 2^24 bounds every size well below the point where products of them overflow.
  if (value < 1 || value > (int64_t{1} << 24))
    throw error("\"" + std::string(key) + "\" is " + std::to_string(value) +
                    ", expected a number from 1 to 16777216",
                file.where(key),
                "take the file that belongs to this model");
  return value;
}

void refuse(const json_file& file, std::string_view key, const std::string& what) {
  throw error(what, file.where(key), "choose a target without it");
}

// transformers 5 keeps the base in rope_parameters, older files at top level and the scaling in
// rope_scaling. Two that disagree are refused: loaders in the field differ on which one wins.
double rope_base(const json_file& file) {
  for (const std::string block : {"rope_scaling", "rope_parameters"}) {
    if (!file.has(block)) continue;
    for (const std::string name : {"rope_type", "type"}) {
      const auto key = block + "." + name;
      const auto type = file.get_string(key, "default");
      if (type != "default")
        refuse(file, key, "rotary positions of type \"" + type + "\" are not supported");
    }
    const auto partial = block + ".partial_rotary_factor";
    if (file.get_real(partial, 1) != 1)
      refuse(file, partial, "partly rotated heads are not supported");
  }
  if (file.get_real("partial_rotary_factor", 1) != 1)
    refuse(file, "partial_rotary_factor", "partly rotated heads are not supported");
  const std::string nested = "rope_parameters.rope_theta";
  const double top = file.get_real("rope_theta", 10000);
  const double base = file.get_real(nested, top);
  if (file.has(nested) && file.has("rope_theta") && top != base)
    throw error("rope_theta and " + nested + " differ: " + std::to_string(top) + " and " +
                    std::to_string(base),
                file.where("rope_theta"),
                "keep the one that the model was trained with");
  if (!(base > 0))
    throw error("rope_theta is " + std::to_string(base) + ", expected a number above 0",
                file.where(file.has(nested) ? nested : "rope_theta"));
  return base;
}

}  // namespace

target_config parse_target_config(const json_file& file) {
  target_config c;
  c.model_type = file.get_string("model_type");
  if (c.model_type != "llama" && c.model_type != "mistral")
    throw error("model_type \"" + c.model_type + "\" is not supported",
                file.where("model_type"),
                "targets are of the Llama family: llama, mistral");
  const auto size = [&](std::string_view key) { return positive(file, key, file.get_int(key)); };
  c.hidden = size("hidden_size");
  c.layers = size("num_hidden_layers");
  c.heads = size("num_attention_heads");
  c.kv_heads = file.has("num_key_value_heads") ? size("num_key_value_heads") : c.heads;
  c.intermediate = size("intermediate_size");
  c.vocab = size("vocab_size");
  if (file.has("head_dim")) {
    c.head_dim = size("head_dim");
  } else {
    if (c.hidden % c.heads != 0)
      throw error("hidden_size " + std::to_string(c.hidden) + " is not a multiple of " +
                      std::to_string(c.heads) + " num_attention_heads and head_dim is absent",
                  file.where("num_attention_heads"),
                  "state head_dim");
    c.head_dim = c.hidden / c.heads;
  }
  if (c.heads % c.kv_heads != 0)
    throw error(std::to_string(c.heads) + " num_attention_heads are not a multiple of " +
                    std::to_string(c.kv_heads) + " num_key_value_heads",
                file.where("num_key_value_heads"));
  if (c.head_dim % 2 != 0 || c.head_dim > 256)
    refuse(
        file,
        file.has("head_dim") ? "head_dim" : "hidden_size",
        "heads of " + std::to_string(c.head_dim) + " dimensions are not supported (even, <= 256)");
  if (c.heads / c.kv_heads > 32)
    refuse(file, "num_key_value_heads", "more than 32 query heads a key head are not supported");
  c.max_positions = file.get_limit(
      "max_position_embeddings", c.model_type == "mistral" ? 4096 * 32 : 2048, most_positions);
  if (c.max_positions < 1)
    throw error("max_position_embeddings is " + std::to_string(c.max_positions),
                file.where("max_position_embeddings"));
  c.rope_theta = rope_base(file);
  c.rms_eps = file.get_real("rms_norm_eps", 1e-6);
  if (!(c.rms_eps >= 0 && c.rms_eps < 1))
    throw error("rms_norm_eps is " + std::to_string(c.rms_eps) + ", expected a small number >= 0",
                file.where("rms_norm_eps"));
  c.tied = file.get_bool("tie_word_embeddings", false);
  const auto activation = file.get_string("hidden_act", "silu");
  if (activation != "silu")
    refuse(file, "hidden_act", "the activation \"" + activation + "\" is not supported");
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (file.get_bool(key, false)) refuse(file, key, std::string(key) + " is not supported");
  if (c.model_type == "mistral") {
    // The class default of an absent key is a window of 4096.
    if (!file.root().contains("sliding_window"))
      refuse(file, "sliding_window", "an absent sliding_window means 4096, which is not supported");
    if (file.has("sliding_window"))
      refuse(file, "sliding_window", "sliding windows are not supported");
  }
  const auto token = [&](std::string_view key, int64_t id) {
    if (id < 0 || id >= c.vocab)
      throw error("\"" + std::string(key) + "\" " + std::to_string(id) + " is outside of the " +
                      std::to_string(c.vocab) + " rows of the vocabulary",
                  file.where(key));
    return id;
  };
  if (file.has("bos_token_id")) c.bos = token("bos_token_id", file.get_int("bos_token_id"));
  for (const auto id : file.get_ints("eos_token_id")) c.eos.push_back(token("eos_token_id", id));
  return c;
}

target_config read_target_config(const std::filesystem::path& folder) {
  auto config = parse_target_config(json_file::open(folder / "config.json"));
  const auto path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) return config;
  const auto generation = json_file::open(path);
  const auto ids = generation.get_ints("eos_token_id");
  for (const auto id : ids)
    if (id < 0 || id >= config.vocab)
      throw error("eos_token_id " + std::to_string(id) + " is outside of the " +
                      std::to_string(config.vocab) + " rows of the vocabulary",
                  generation.where("eos_token_id"));
  if (!ids.empty()) config.eos = ids;
  return config;
}

}  // namespace dflash

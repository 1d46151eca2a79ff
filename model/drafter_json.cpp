#include "model/drafter_json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "data/safetensors.hpp"
#include "model/json_file.hpp"

namespace dflash {
namespace {

using json = nlohmann::ordered_json;

bool any_sliding(const drafter_config& c) {
  return std::any_of(c.sliding.begin(), c.sliding.end(), [](bool s) { return s; });
}

const char* dtype_text(at::ScalarType dtype) {
  DFLASH_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat,
               "drafters are stored in bf16 or fp32",
               c10::toString(dtype));
  return dtype == at::kBFloat16 ? "bfloat16" : "float32";
}

// Sizes, layer types and token ids: the same keys in both forms.
void add_layers(json& out, const drafter_config& c, const drafter_extras& extras) {
  const auto id_or_null = [](const std::optional<int64_t>& id) { return id ? json(*id) : json(); };
  json eos;
  if (extras.eos.size() == 1)
    eos = extras.eos.front();
  else if (!extras.eos.empty())
    eos = extras.eos;
  json layer_types = json::array();
  for (const bool sliding : c.sliding)
    layer_types.push_back(sliding ? "sliding_attention" : "full_attention");
  out["model_type"] = "qwen3";
  out["hidden_size"] = c.hidden;
  out["intermediate_size"] = c.intermediate;
  out["num_hidden_layers"] = c.layers;
  out["num_attention_heads"] = c.heads;
  out["num_key_value_heads"] = c.kv_heads;
  out["head_dim"] = c.head_dim;
  out["layer_types"] = layer_types;
  out["sliding_window"] = any_sliding(c) ? json(c.sliding_window) : json();
  out["use_sliding_window"] = any_sliding(c);
  out["max_window_layers"] = c.layers;
  out["max_position_embeddings"] = c.max_positions;
  out["vocab_size"] = c.vocab;
  out["bos_token_id"] = id_or_null(extras.bos);
  out["eos_token_id"] = eos;
  out["pad_token_id"] = id_or_null(extras.pad);
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = c.rms_eps;
  out["attention_bias"] = false;
  out["attention_dropout"] = 0.0;
  out["initializer_range"] = 0.02;
  out["tie_word_embeddings"] = false;
  out["use_cache"] = true;
}

json zlab_json(const drafter_config& c, at::ScalarType dtype, const drafter_extras& extras) {
  json out;
  out["architectures"] = json::array({"DFlashDraftModel"});
  out["auto_map"] = {{"AutoModel", "dflash.DFlashDraftModel"}};
  out["dtype"] = dtype_text(dtype);
  out["num_target_layers"] = c.num_target_layers;
  out["block_size"] = c.block_size;
  out["dflash_config"] = {{"mask_token_id", c.mask_token_id}, {"target_layer_ids", c.taps}};
  add_layers(out, c, extras);
  if (c.causal) out["is_causal"] = *c.causal;
  out["rope_theta"] = c.rope_theta;
  out["rope_scaling"] = json();
  return out;
}

json speculators_json(const drafter_config& c, at::ScalarType dtype, const drafter_extras& extras) {
  json taps = json::array();  // counted by the layer that takes them in (dflash.md 3.4)
  for (const int tap : c.taps) taps.push_back(tap + 1);
  json layers;
  add_layers(layers, c, extras);
  layers["rope_parameters"] = {{"rope_theta", c.rope_theta}, {"rope_type", "default"}};
  json out;
  out["architectures"] = json::array({"DFlashDraftModel"});
  out["speculators_model_type"] = "dflash";
  out["speculators_version"] = "0.9.0";
  out["dtype"] = dtype_text(dtype);
  out["block_size"] = c.block_size;
  out["draft_vocab_size"] = c.draft_vocab();
  out["aux_hidden_state_layer_ids"] = taps;
  out["mask_token_id"] = c.mask_token_id;
  out["sample_from_anchor"] = false;
  out["sliding_window_non_causal"] = any_sliding(c) && c.causal && !*c.causal;
  out["target_hidden_size"] = c.target_hidden == c.hidden ? json() : json(c.target_hidden);
  // speculators reads the number from the target; extra keys pass through it.
  if (c.num_target_layers > 0) out["num_target_layers"] = c.num_target_layers;
  out["tie_word_embeddings"] = false;
  out["speculators_config"] = {
      {"algorithm", "dflash"},
      {"default_proposal_method", "greedy"},
      {"proposal_methods",
       json::array({{{"proposal_type", "greedy"},
                     {"speculative_tokens", c.block_size - 1},
                     {"accept_tolerance", 0.0},
                     {"verifier_accept_k", 1}}})},
      {"verifier",
       {{"name_or_path", extras.verifier}, {"architectures", extras.verifier_architectures}}}};
  out["transformer_layer_config"] = layers;
  return out;
}

}  // namespace

drafter_extras read_drafter_extras(const std::filesystem::path& folder) {
  const auto config = json_file::open(folder / "config.json");
  const bool nested = form_of(config) == drafter_form::speculators;
  const std::string layers = nested ? "transformer_layer_config." : "";
  const auto one = [&](const std::string& key) -> std::optional<int64_t> {
    const auto ids = config.get_ints(layers + key);
    if (ids.empty()) return std::nullopt;
    return ids.front();
  };
  drafter_extras extras{.bos = one("bos_token_id"),
                        .eos = config.get_ints(layers + "eos_token_id"),
                        .pad = one("pad_token_id")};
  if (nested) {
    const std::string verifier = "speculators_config.verifier.";
    extras.verifier = config.get_string(verifier + "name_or_path", "");
    extras.verifier_architectures = config.get_strings(verifier + "architectures");
  }
  const auto weights = folder / "model.safetensors";
  if (!std::filesystem::exists(weights)) return extras;  // sharded: not written by this program
  const auto file = safetensors_file::open(weights);
  const auto hash = file.metadata().find("target_hash");
  if (hash != file.metadata().end()) extras.target_hash = hash->second;
  return extras;
}

void set_verifier(drafter_extras& extras, const std::filesystem::path& target_folder) {
  extras.verifier = std::filesystem::absolute(target_folder).lexically_normal().string();
  extras.verifier_architectures =
      json_file::open(target_folder / "config.json").get_strings("architectures");
}

void check_form_fits(drafter_form form,
                     const drafter_config& c,
                     const drafter_extras& extras,
                     const std::string& where) {
  if (form == drafter_form::zlab) {
    if (!c.draft_ids.empty())
      throw error("z-lab's form knows no draft vocabulary, and the drafter has one of " +
                      std::to_string(c.draft_vocab()) + " tokens",
                  where,
                  "export it with --form speculators");
    if (c.num_target_layers < 1)
      throw error(
          "z-lab's form needs the number of target layers, which the drafter does not state",
          where,
          "name the target's folder with --target");
    return;
  }
  if (c.causal && *c.causal &&
      !std::all_of(c.sliding.begin(), c.sliding.end(), [](bool s) { return s; }))
    throw error("full layers that are causal cannot be stated in speculators' form",
                where,
                "export it with --form zlab");
  if (extras.verifier.empty())
    throw error("speculators' form needs the target's place", where, "name it with --target");
}

std::string drafter_config_json(drafter_form form,
                                const drafter_config& config,
                                at::ScalarType dtype,
                                const drafter_extras& extras) {
  const json out = form == drafter_form::zlab ? zlab_json(config, dtype, extras)
                                              : speculators_json(config, dtype, extras);
  return out.dump(2) + "\n";
}

}  // namespace dflash

#include "model/drafter_form.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

#include "config/error.hpp"

namespace dflash {
namespace {

constexpr const char* hint =
    "give a DFlash drafter in z-lab's form (dflash_config) or speculators' (speculators_model_type "
    "\"dflash\")";

[[noreturn]] void refuse(const json_file& f, std::string_view key, const std::string& what) {
  throw error(what, f.where(key), hint);
}

// Keys of other kinds of drafters, at the top or inside dflash_config. A key that is absent, null
// or neutral changes nothing.
struct variant_key {
  std::string name;
  nlohmann::json neutral;
  std::string meaning;
};

const std::vector<variant_key>& variant_keys() {
  static const std::vector<variant_key> keys{
      {"conv_kernel_size", nullptr, "a DFlash 2 drafter (convolutions)"},
      {"conv_group_size", nullptr, "a DFlash 2 drafter (convolutions)"},
      {"selector_rank", nullptr, "a DFlash 2 drafter (candidate selector)"},
      {"selector_top_k", nullptr, "a DFlash 2 drafter (candidate selector)"},
      {"projector_type", nullptr, "a drafter with a projector (Domino)"},
      {"gru_hidden_dim", nullptr, "a Domino drafter (recurrent head)"},
      {"emb_dim", nullptr, "a Domino drafter (recurrent head)"},
      {"pure_draft_prefix_len", nullptr, "a Domino drafter (recurrent head)"},
      {"markov_rank", 0, "a DSpark drafter (Markov head)"},
      {"enable_confidence_head", false, "a DSpark drafter (confidence head)"},
      {"causal_head", false, "a JetSpec drafter (causal head)"},
      {"sample_from_anchor", false, "a drafter whose anchor slot proposes a token"},
      {"shift_label", false, "a drafter whose slots predict the token after their own"},
      {"attention_sink_bias", false, "a drafter with attention sinks"},
      {"attention_value_scale", 1, "a drafter with scaled attention values"},
      {"input_embedding_scale", 1, "a drafter with scaled embeddings"},
      {"output_multiplier", 1, "a drafter with scaled logits"},
      {"final_logit_softcapping", 0, "a drafter with capped logits"},
      {"rope_is_neox_style", true, "a drafter with interleaved rotary positions"}};
  return keys;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return text;
}

// What an architecture's name says that the file is; empty for a DFlash drafter.
std::string other_kind(const std::string& architecture) {
  const std::string name = lower(architecture);
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("eagle")) return "an EAGLE drafter";
  if (has("dflash2")) return "a DFlash 2 drafter";
  if (has("dspark")) return "a DSpark drafter";
  if (has("domino")) return "a Domino drafter";
  if (has("medusa")) return "a Medusa drafter";
  if (has("mtp")) return "a multi-token-prediction head";
  if (has("dflash")) return {};
  return "not a drafter";
}

void refuse_variants(const json_file& f) {
  for (const std::string prefix : {"", "dflash_config."})
    for (const variant_key& key : variant_keys()) {
      const auto* value = f.find(prefix + key.name);
      if (value != nullptr && *value != key.neutral)
        refuse(f, prefix + key.name, "this is " + key.meaning + ", which is not supported");
    }
}

}  // namespace

const char* name_of(drafter_form form) {
  return form == drafter_form::zlab ? "zlab" : "speculators";
}

drafter_form form_of(const json_file& f) {
  for (const char* key : {"quantization_config", "compression_config"})
    if (f.has(key)) refuse(f, key, "quantised drafters are not supported");
  if (f.has("speculators_model_type")) {
    const std::string type = f.get_string("speculators_model_type");
    if (type != "dflash")
      refuse(f,
             "speculators_model_type",
             "this is a drafter of the kind \"" + type + "\", which is not supported");
    refuse_variants(f);
    if (!f.has("transformer_layer_config"))
      refuse(
          f, "transformer_layer_config", "a speculators drafter without transformer_layer_config");
    return drafter_form::speculators;
  }
  for (const std::string& name : f.get_strings("architectures")) {
    const std::string kind = other_kind(name);
    if (!kind.empty())
      refuse(f, "architectures", name + " is " + kind + ", which is not supported");
  }
  refuse_variants(f);
  if (!f.has("dflash_config") && !f.has("target_layer_ids"))
    refuse(f, "dflash_config", "this is no DFlash drafter: config.json names no target layers");
  return drafter_form::zlab;
}

}  // namespace dflash

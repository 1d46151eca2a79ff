// config.json of a drafter, in either published form, into a drafter_config.
#include <algorithm>
#include <string>

#include "config/error.hpp"
#include "model/draft_vocab.hpp"
#include "model/drafter_config.hpp"
#include "model/drafter_form.hpp"
#include "model/folder.hpp"
#include "model/json_file.hpp"

namespace dflash {
namespace {

[[noreturn]] void refuse(const json_file& f, const std::string& key, const std::string& what) {
  throw error(what, f.where(key), "this drafter form is not supported");
}

// The keys of the decoder layers: at the top in z-lab's form. speculators leaves out what equals
// the defaults of transformers' Qwen3Config in some versions.
struct layer_keys {
  const json_file& f;
  std::string prefix;
  bool with_defaults;

  std::string at(const std::string& name) const { return prefix + name; }
  int64_t size(const std::string& name, int64_t default_value) const {
    return with_defaults ? f.get_int(at(name), default_value) : f.get_int(at(name));
  }
};

// Plain rotary positions only, in rope_parameters (transformers 5) or rope_theta (before).
double rope_base(const layer_keys& k) {
  for (const std::string block : {"rope_scaling", "rope_parameters"}) {
    const auto* values = k.f.find(k.at(block));
    if (!values) continue;
    if (!values->is_object()) refuse(k.f, k.at(block), block + " is no object");
    for (const auto& [name, value] : values->items()) {
      const std::string key = k.at(block) + "." + name;
      if (value.is_null() || name == "rope_theta") continue;
      if (name == "rope_type" || name == "type") {
        const std::string type = k.f.get_string(key);
        if (type != "default") refuse(k.f, key, "scaled rotary positions (" + type + ")");
      } else if (name != "partial_rotary_factor" || k.f.get_real(key) != 1) {
        refuse(k.f, key, "rotary positions other than plain ones (" + name + ")");
      }
    }
  }
  if (k.f.get_real(k.at("partial_rotary_factor"), 1) != 1)
    refuse(k.f, k.at("partial_rotary_factor"), "partly rotated heads");
  const std::string older = k.at("rope_theta"), newer = k.at("rope_parameters.rope_theta");
  if (k.f.has(older) && k.f.has(newer) && k.f.get_real(older) != k.f.get_real(newer))
    throw error(
        "rope_theta and rope_parameters.rope_theta differ: " + std::to_string(k.f.get_real(older)) +
            " and " + std::to_string(k.f.get_real(newer)),
        k.f.where(older),
        "keep the one that the drafter was trained with");
  if (k.f.has(newer)) return k.f.get_real(newer);
  return k.with_defaults ? k.f.get_real(older, 10000) : k.f.get_real(older);
}

// Which layers slide; empty: the file does not say.
std::vector<bool> sliding_layers(const layer_keys& k) {
  std::vector<bool> sliding;
  const std::string key = k.at("layer_types");
  for (const std::string& type : k.f.get_strings(key)) {
    if (type != "sliding_attention" && type != "full_attention")
      throw error("unknown layer type \"" + type + "\"",
                  k.f.where(key),
                  "known: full_attention, sliding_attention");
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

// Taps, blocks, masks and causality are left to the form.
drafter_config read_layers(const layer_keys& k) {
  if (k.f.get_bool(k.at("attention_bias"), false))
    refuse(k.f, k.at("attention_bias"), "biases in attention");
  const std::string act = k.f.get_string(k.at("hidden_act"), "silu");
  if (act != "silu") refuse(k.f, k.at("hidden_act"), "activation " + act);
  drafter_config c;
  c.layers = k.size("num_hidden_layers", 32);
  c.hidden = k.size("hidden_size", 4096);
  c.intermediate = k.size("intermediate_size", 22016);
  c.heads = k.size("num_attention_heads", 32);
  c.kv_heads = k.size("num_key_value_heads", 32);
  c.head_dim = k.f.get_int(k.at("head_dim"), 128);  // z-lab's default too
  c.vocab = k.size("vocab_size", 151936);
  c.max_positions = k.size("max_position_embeddings", 32768);
  c.rope_theta = rope_base(k);
  c.rms_eps = k.f.get_real(k.at("rms_norm_eps"), 1e-6);
  c.sliding_window = k.f.get_int(k.at("sliding_window"), 0);
  c.sliding = sliding_layers(k);
  if (c.sliding.empty())
    c.sliding.assign(static_cast<size_t>(std::clamp<int64_t>(c.layers, 0, 1024)), false);
  return c;
}

void read_taps(const json_file& f, const std::string& key, int64_t offset, drafter_config& c) {
  for (const int64_t id : f.get_ints(key)) {
    const int64_t last = c.num_target_layers > 0 ? c.num_target_layers - 1 + offset : 1 << 20;
    if (id < offset || id > last)
      throw error("tap " + std::to_string(id) + " is not a layer of the target (" +
                      std::to_string(offset) + " to " + std::to_string(last) + ")",
                  f.where(key),
                  offset == 0 ? "entry j is the output of the target's 0-based layer j"
                              : "speculators counts a tap by the layer that takes it in: entry j "
                                "is the output of the target's 0-based layer j - 1");
    c.taps.push_back(static_cast<int>(id - offset));
  }
}

drafter_config read_zlab(const json_file& f) {
  const auto inner = [](const std::string& name) { return "dflash_config." + name; };
  // z-lab's older files keep some keys at the top, newer ones inside dflash_config (dflash.md 3.3).
  const auto either = [&](const std::string& name, int64_t default_value) {
    const bool both = f.has(inner(name)) && f.has(name);
    if (both && f.get_int(inner(name)) != f.get_int(name))
      throw error(name + " is " + std::to_string(f.get_int(inner(name))) +
                      " in dflash_config and " + std::to_string(f.get_int(name)) + " at the top",
                  f.where(name),
                  "the two must agree");
    return f.has(inner(name)) ? f.get_int(inner(name)) : f.get_int(name, default_value);
  };
  drafter_config c = read_layers({f, "", false});
  c.target_hidden = f.get_int("target_hidden_size", c.hidden);
  c.block_size = either("block_size", 16);
  c.mask_token_id = either("mask_token_id", -1);
  c.num_target_layers = either("num_target_layers", 0);
  if (c.num_target_layers < 1)
    throw error("num_target_layers is " + std::to_string(c.num_target_layers),
                f.where("num_target_layers"),
                "give the number of layers of the target");
  read_taps(
      f, f.has(inner("target_layer_ids")) ? inner("target_layer_ids") : "target_layer_ids", 0, c);
  if (f.get_bool(inner("use_swa"), false)) {
    c.sliding.assign(c.sliding.size(), true);
    c.sliding_window = f.get_int(inner("swa_window_size"), c.sliding_window);
  }
  if (f.has("is_causal"))
    c.causal = f.get_bool("is_causal");
  else if (f.has(inner("causal")))
    c.causal = f.get_bool(inner("causal"));
  return c;
}

drafter_config read_speculators(const json_file& f) {
  const std::string layers = "transformer_layer_config.";
  const std::string type = f.get_string(layers + "model_type", "qwen3");
  if (type != "qwen3") refuse(f, layers + "model_type", "decoder layers of type " + type);
  drafter_config c = read_layers({f, layers, true});
  c.target_hidden = f.get_int("target_hidden_size", c.hidden);
  c.block_size = f.get_int("block_size", 8);  // the default of its class
  c.mask_token_id = f.get_int("mask_token_id");
  c.num_target_layers = f.get_int("num_target_layers", 0);  // written by this program only
  // The most repeated mistake of the field: id_speculators = id_zlab + 1 (dflash.md 3.4).
  read_taps(f, "aux_hidden_state_layer_ids", 1, c);
  // Full layers see their whole block whatever the key says.
  if (f.get_bool("sliding_window_non_causal", false)) c.causal = false;
  return c;
}

int64_t draft_vocab_size(const json_file& f, drafter_form form, int64_t vocab) {
  std::string key = "draft_vocab_size";
  if (form == drafter_form::zlab && f.has("dflash_config." + key)) key = "dflash_config." + key;
  const int64_t size = f.get_int(key, form == drafter_form::zlab ? vocab : 32000);
  if (size < 1 || size > vocab)
    throw error("draft_vocab_size is " + std::to_string(size) + ", the target has " +
                    std::to_string(vocab) + " tokens",
                f.where(key));
  return size;
}

}  // namespace

drafter_config parse_drafter_config(const json_file& f, int64_t& draft_vocab) {
  const drafter_form form = form_of(f);
  drafter_config c = form == drafter_form::zlab ? read_zlab(f) : read_speculators(f);
  if (std::none_of(c.sliding.begin(), c.sliding.end(), [](bool s) { return s; }))
    c.sliding_window = 0;
  check_drafter_config(c, f.path().string());
  draft_vocab = draft_vocab_size(f, form, c.vocab);
  return c;
}

drafter_config take_drafter_config(model_folder& files) {
  // A pickle of z-lab's later drafters: the mask token's row in place of the target's.
  if (std::filesystem::exists(files.path() / "mask_embedding.pt"))
    throw error("a drafter with a mask embedding of its own is not supported",
                (files.path() / "mask_embedding.pt").string());
  int64_t draft_vocab = 0;
  drafter_config c = parse_drafter_config(files.config(), draft_vocab);
  if (draft_vocab == c.vocab) return c;
  const auto d2t = files.load_i64("d2t", {draft_vocab});
  const auto t2d = files.load_bool("t2d", {c.vocab});
  c.draft_ids = draft_ids(d2t, t2d, files.path().string() + ", d2t and t2d");
  return c;
}

drafter_config read_drafter_config(const std::filesystem::path& folder) {
  int64_t draft_vocab = 0;
  const drafter_config c =
      parse_drafter_config(json_file::open(folder / "config.json"), draft_vocab);
  if (draft_vocab == c.vocab) return c;
  model_folder files = model_folder::open(folder);
  return take_drafter_config(files);
}

}  // namespace dflash

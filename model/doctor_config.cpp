// Checks on a drafter's config.json.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "config/error.hpp"
#include "model/doctor.hpp"

namespace dflash {

namespace {

using checker = std::function<finding(const doctor_files&)>;

finding good(std::string what) {
  return {.check = {}, .level = health::ok, .what = std::move(what)};
}

finding bad(health level, std::string what, std::string why, std::string mend) {
  return {.check = {},
          .level = level,
          .what = std::move(what),
          .why = std::move(why),
          .mend = std::move(mend)};
}

std::string inner(const char* key) {
  return std::string("dflash_config.") + key;
}

// From dflash_config, else from the top.
std::optional<int64_t> number(const json_file& config, const char* key) {
  if (config.has(inner(key))) return config.get_int(inner(key));
  if (config.has(key)) return config.get_int(key);
  return std::nullopt;
}

std::vector<int64_t> tap_ids(const json_file& config) {
  const std::string key =
      config.has(inner("target_layer_ids")) ? inner("target_layer_ids") : "target_layer_ids";
  return config.get_ints(key);
}

finding check_form(const doctor_files& f) {
  if (f.config.has("speculators_model_type") && !f.config.has("dflash_config"))
    return bad(health::warn,
               "config.json is in the form of speculators",
               "there a tap is named by the layer that it enters: one more than here",
               "if it is not read as it should be, convert it to z-lab's form");
  if (!f.config.has("dflash_config"))
    return bad(health::fail,
               "config.json has no dflash_config",
               "engines read taps and mask token there",
               "export the drafter again: dflash export");
  std::vector<std::string> variants;
  for (const char* key : {"conv_kernel_size", "selector_rank", "projector_type"})
    if (f.config.has(inner(key))) variants.push_back(key);
  for (const char* key : {"sample_from_anchor", "shift_label", "attention_sink_bias"})
    if (f.config.get_bool(inner(key), false)) variants.push_back(key);
  if (f.config.get_bool("attention_bias", false)) variants.push_back("attention_bias");
  if (!variants.empty())
    return bad(health::fail,
               fmt::format("a variant of the drafter: {}", fmt::join(variants, ", ")),
               "this program runs plain DFlash drafters only, so that it was not tried",
               "evaluate it with the program that made it");
  const std::string act = f.config.get_string("hidden_act", "silu");
  if (act != "silu")
    return bad(health::fail,
               "hidden_act is " + act,
               "the MLP of a DFlash drafter has a SiLU gate",
               "set hidden_act to silu if it was trained so");
  return good("z-lab's form");
}

finding check_vocabulary(const doctor_files& f) {
  const auto vocab = f.config.get_int("vocab_size");
  if (vocab == f.target.vocab) return good(fmt::format("{} tokens in both", vocab));
  return bad(
      health::fail,
      fmt::format("vocab_size is {}, the target's embedding has {} rows", vocab, f.target.vocab),
      "engines share embedding and head only if the (padded) sizes are equal; else the head "
      "is not shared and acceptance is 0",
      fmt::format("set vocab_size to {} if both have the same tokenizer; else the drafter "
                  "belongs to another model",
                  f.target.vocab));
}

finding check_size(const doctor_files& f) {
  const auto hidden = f.config.get_int("hidden_size");
  if (hidden == f.target.hidden) return good(fmt::format("width {} in both", hidden));
  return bad(health::fail,
             fmt::format("hidden_size is {}, the target's {}", hidden, f.target.hidden),
             "the drafter borrows the target's embedding and head",
             "the drafter belongs to another model");
}

finding check_taps(const doctor_files& f) {
  const auto taps = tap_ids(f.config);
  const auto mend_numbering = [&] {
    std::vector<int64_t> lower;
    for (const int64_t tap : taps) lower.push_back(tap - 1);
    return fmt::format("in z-lab's numbering they would be {}", fmt::join(lower, " "));
  };
  if (taps.empty())
    return bad(health::fail,
               "target_layer_ids is missing or empty",
               "the drafter reads the target by these layers",
               "name them; fc.weight has one block of columns for each");
  const auto most = *std::max_element(taps.begin(), taps.end());
  if (most == f.target.layers)
    return bad(health::fail,
               fmt::format("tap {} of a target with layers 0 to {}", most, most - 1),
               "this is the numbering of speculators and vLLM, one more than z-lab's: every tap is "
               "off by one",
               mend_numbering());
  if (most > f.target.layers || *std::min_element(taps.begin(), taps.end()) < 0)
    return bad(
        health::fail,
        fmt::format(
            "taps {} of a target with layers 0 to {}", fmt::join(taps, " "), f.target.layers - 1),
        "there is no such layer",
        "the drafter belongs to another model, or target_layer_ids is wrong");
  const auto layers = number(f.config, "num_target_layers");
  if (layers && *layers != f.target.layers)
    return bad(
        health::fail,
        fmt::format("num_target_layers is {}, the target has {} layers", *layers, f.target.layers),
        "the taps count the layers of another model",
        "take the drafter that was trained for this target");
  if (std::adjacent_find(taps.begin(), taps.end(), std::greater_equal<>()) != taps.end())
    return bad(health::fail,
               fmt::format("taps {} do not rise", fmt::join(taps, " ")),
               "fc.weight has a block of columns for each tap, in this order",
               "list each layer once, lowest first, as in training");
  const st_tensor* fc = f.weights.find("fc.weight");
  const auto width = static_cast<int64_t>(taps.size()) * f.target.hidden;
  if (fc != nullptr && fc->shape.size() == 2 && fc->shape[1] != width)
    return bad(health::fail,
               fmt::format("fc.weight reads {} columns, {} taps of width {} give {}",
                           fc->shape[1],
                           taps.size(),
                           f.target.hidden,
                           width),
               "such a mismatch nearly always means wrong target_layer_ids",
               "name as many layers as the drafter was trained with");
  return good(fmt::format("{} of {} layers", fmt::join(taps, " "), f.target.layers));
}

finding check_mask_token(const doctor_files& f) {
  const auto id = number(f.config, "mask_token_id");
  if (!id)
    return bad(health::fail,
               "mask_token_id is missing",
               "engines guess it then, and rarely right",
               "name the id that it was trained with");
  if (*id < 0 || *id >= f.target.vocab)
    return bad(health::fail,
               fmt::format("mask_token_id is {}, the target's embedding has rows 0 to {}",
                           *id,
                           f.target.vocab - 1),
               "a mask row that was added in training is not in this target",
               "train with a reserved row that the target has");
  if (std::count(f.target.eos.begin(), f.target.eos.end(), *id) > 0)
    return bad(health::fail,
               fmt::format("mask_token_id {} is the target's end-of-text", *id),
               "a place to fill looks like the end of a text",
               "train with a reserved row that no text uses");
  if (*id == f.target.bos)
    return bad(health::warn,
               fmt::format("mask_token_id {} is the target's first token", *id),
               "texts use that row",
               "better train with a reserved row that no text uses");
  return good(fmt::format("row {} of the target's embedding", *id));
}

finding check_block_size(const doctor_files& f) {
  const bool in = f.config.has(inner("block_size")), out = f.config.has("block_size");
  if (in && out && f.config.get_int(inner("block_size")) != f.config.get_int("block_size"))
    return bad(health::fail,
               fmt::format("block_size is {} in dflash_config and {} at the top",
                           f.config.get_int(inner("block_size")),
                           f.config.get_int("block_size")),
               "engines read one or the other",
               "set both to the size that it was trained with");
  if (!in && !out)
    return bad(health::warn,
               "block_size is missing",
               "engines take 16",
               "write the size that it was trained with");
  const auto size = *number(f.config, "block_size");
  if (size < 2)
    return bad(health::fail,
               fmt::format("block_size is {}", size),
               "a block is an anchor and at least one place to fill",
               "write the size that it was trained with");
  return good(fmt::format("{}: {} drafts a pass", size, size - 1));
}

finding check_rope(const doctor_files& f) {
  const auto why =
      "training here rotates all of each head by the target's plain base; engines "
      "honour the key, so that drafter and training differ";
  for (const char* key : {"partial_rotary_factor",
                          "rope_parameters.partial_rotary_factor",
                          "rope_scaling.partial_rotary_factor"})
    if (f.config.has(key) && f.config.get_real(key) != 1.0)
      return bad(health::fail,
                 fmt::format("{} is {}", key, f.config.get_real(key)),
                 why,
                 std::string("remove ") + key);
  for (const char* key : {"rope_scaling.mrope_section", "rope_parameters.mrope_section"})
    if (f.config.has(key))
      return bad(health::fail, std::string(key) + " is set", why, std::string("remove ") + key);
  if (f.config.has("rope_scaling"))
    return bad(health::fail, "rope_scaling is set", why, "set rope_scaling to null");
  const auto type = f.config.get_string("rope_parameters.rope_type", "default");
  if (type != "default")
    return bad(health::fail, "rope_parameters.rope_type is " + type, why, "set it to default");
  const auto theta = f.config.has("rope_theta") ? f.config.get_real("rope_theta")
                                                : f.config.get_real("rope_parameters.rope_theta");
  if (theta != f.target.rope_theta)
    return bad(
        health::fail,
        fmt::format("rope_theta is {}, the target's {}", theta, f.target.rope_theta),
        "positions turn at another speed than in the target; long contexts suffer most",
        fmt::format("set it to {} unless it was trained with another base", f.target.rope_theta));
  return good(fmt::format("base {}, all of each head", theta));
}

finding check_layer_kinds(const doctor_files& f) {
  const auto layers = f.config.get_int("num_hidden_layers");
  std::vector<std::string> kinds(static_cast<size_t>(std::clamp<int64_t>(layers, 0, 1024)),
                                 "full_attention");
  if (f.config.has("layer_types")) kinds = f.config.get_strings("layer_types");
  if (std::cmp_not_equal(kinds.size(), layers))
    return bad(health::fail,
               fmt::format("{} layer_types for {} layers", kinds.size(), layers),
               "each layer has its kind",
               "write one entry a layer");
  for (const auto& kind : kinds)
    if (kind != "full_attention" && kind != "sliding_attention")
      return bad(health::fail,
                 "unknown layer type " + kind,
                 "known are full_attention and sliding_attention",
                 "write the kinds that it was trained with");
  const bool all = f.config.get_bool(inner("use_swa"), false);
  const auto sliding =
      all ? layers : std::count(kinds.begin(), kinds.end(), std::string("sliding_attention"));
  if (sliding == 0) return good("all layers see the whole context");
  const auto window =
      f.config.get_int(inner("swa_window_size"), f.config.get_int("sliding_window", 0));
  if (window <= 0)
    return bad(health::fail,
               fmt::format("{} sliding layers without a sliding_window", sliding),
               "engines serve them as full layers or refuse them",
               "write the window that it was trained with");
  if (!all && f.config.has("use_sliding_window") && !f.config.get_bool("use_sliding_window"))
    return bad(health::fail,
               fmt::format("{} sliding layers, but use_sliding_window is false", sliding),
               "engines serve them as full layers: acceptance falls to 0 beyond the window",
               "set use_sliding_window to true");
  if (sliding < layers)
    return bad(
        health::warn,
        fmt::format(
            "{} sliding layers (window {}) and {} full ones", sliding, window, layers - sliding),
        "older engines serve mixed layers as full ones",
        "check acceptance beyond the window in the engine that serves it");
  return good(fmt::format("all layers slide, window {}", window));
}

}  // namespace

const char* name_of(health level) {
  switch (level) {
    case health::ok:
      return "ok";
    case health::warn:
      return "warn";
    case health::fail:
      return "fail";
  }
  return "?";
}

std::vector<finding> check_config(const doctor_files& files) {
  const std::pair<const char*, checker> checks[] = {{"form", check_form},
                                                    {"vocabulary", check_vocabulary},
                                                    {"size", check_size},
                                                    {"taps", check_taps},
                                                    {"mask_token", check_mask_token},
                                                    {"block_size", check_block_size},
                                                    {"rope", check_rope},
                                                    {"layer_kinds", check_layer_kinds}};
  std::vector<finding> findings;
  for (const auto& [name, check] : checks) {
    try {
      findings.push_back(check(files));
    } catch (const error& problem) {  // a key that is missing or of another type
      findings.push_back(
          bad(health::fail,
              problem.what_ + " (" + problem.where + ")",
              "the key cannot be read",
              problem.hint.empty() ? "write it as z-lab's drafters have it" : problem.hint));
    }
    findings.back().check = name;
  }
  return findings;
}

}  // namespace dflash

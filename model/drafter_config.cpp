#include "model/drafter_config.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "config/error.hpp"

namespace dflash {
namespace {

// Rounds halves to even, as Python's round() does for the published tap lists.
int64_t banker_round(double x) {
  const double low = std::floor(x), rest = x - low;
  const int64_t n = static_cast<int64_t>(low);
  if (rest != 0.5) return rest < 0.5 ? n : n + 1;
  return n % 2 == 0 ? n : n + 1;
}

bool is_sliding(const std::string& type, const std::string& where) {
  if (type == "sliding_attention") return true;
  if (type == "full_attention") return false;
  throw error(
      "unknown layer type \"" + type + "\"", where, "known: full_attention, sliding_attention");
}

}  // namespace

std::vector<int> default_taps(int64_t n, int64_t draft_layers) {
  DFLASH_CHECK(n >= 4 && draft_layers >= 1, "layers for default taps", n, draft_layers);
  if (draft_layers == 1) return {static_cast<int>(n / 2)};
  std::vector<int> taps;
  for (int64_t i = 0; i < draft_layers; ++i)
    taps.push_back(static_cast<int>(banker_round(1.0 + static_cast<double>(i * (n - 4)) /
                                                           static_cast<double>(draft_layers - 1))));
  return taps;
}

void check_drafter_config(const drafter_config& c, const std::string& where) {
  const auto refuse = [&](const std::string& what, const std::string& hint = {}) {
    throw error(what, where, hint);
  };
  const auto number = [](int64_t n) { return std::to_string(n); };
  const std::pair<const char*, int64_t> sizes[] = {{"layers", c.layers},
                                                   {"hidden_size", c.hidden},
                                                   {"intermediate_size", c.intermediate},
                                                   {"heads", c.heads},
                                                   {"kv_heads", c.kv_heads},
                                                   {"head_dim", c.head_dim},
                                                   {"the target's hidden size", c.target_hidden},
                                                   {"vocab_size", c.vocab},
                                                   {"max_position_embeddings", c.max_positions}};
  for (const auto& [name, size] : sizes)
    if (size < 1 || size > (int64_t{1} << 31))
      refuse(std::string(name) + " is " + number(size) + ", which no drafter has");
  if (c.num_target_layers < 0 || c.num_target_layers > (1 << 20))
    refuse("num_target_layers is " + number(c.num_target_layers) + ", which no target has");
  if (c.layers > 1024) refuse(number(c.layers) + " layers, which no drafter has");
  if (c.head_dim % 2 != 0)
    refuse("head_dim is odd (" + number(c.head_dim) + "): rotary positions turn two halves");
  if (c.heads % c.kv_heads != 0)
    refuse("heads (" + number(c.heads) + ") is not a multiple of kv_heads (" + number(c.kv_heads) +
           ")");
  if (c.block_size < 2 || c.block_size > 1024)
    refuse("block_size is " + number(c.block_size),
           "a block is one anchor slot and at least one mask slot, 1024 slots at most");
  if (c.mask_token_id < 0 || c.mask_token_id >= c.vocab)
    refuse("mask_token_id " + number(c.mask_token_id) +
               " is not a row of the target's embedding (0 to " + number(c.vocab - 1) + ")",
           "name a token that never occurs in text, such as an unused reserved one");
  if (c.taps.empty()) refuse("no target layers are tapped", "e.g. taps = [1, 8, 14, 20, 27]");
  int before = -1;
  for (const int tap : c.taps) {
    if (tap < 0 || (c.num_target_layers > 0 && tap >= c.num_target_layers))
      refuse("tap " + number(tap) + " is not a layer of the target (0 to " +
                 number(c.num_target_layers - 1) + ")",
             "taps count the target's layers from 0; entry j is the output of layer j");
    if (tap <= before)
      refuse("taps must rise strictly: " + number(tap) + " after " + number(before));
    before = tap;
  }
  if (static_cast<int64_t>(c.sliding.size()) != c.layers)
    refuse("layer_types has " + number(static_cast<int64_t>(c.sliding.size())) + " entries for " +
           number(c.layers) + " layers");
  bool any = false;
  for (const bool s : c.sliding) any = any || s;
  if (any && c.sliding_window < 1)
    refuse("sliding layers need sliding_window (tokens, the query included)");
  int32_t token = -1;
  for (const int32_t id : c.draft_ids) {
    if (id <= token || id >= c.vocab)
      refuse("draft token " + number(id) + " after " + number(token) +
             ": the ids of a draft vocabulary rise and are the target's");
    token = id;
  }
  if (!(c.rope_theta > 0) || !std::isfinite(c.rope_theta)) refuse("rope_theta must be above 0");
  if (!(c.rms_eps > 0) || !(c.rms_eps < 1)) refuse("rms_norm_eps must lie between 0 and 1");
}

void check_drafter_fits(const drafter_config& c, const target_config& t, const std::string& where) {
  const auto need = [&](const char* what, int64_t drafter, int64_t target) {
    if (drafter != target)
      throw error(std::string("the drafter belongs to another target: its ") + what + " is " +
                      std::to_string(drafter) + ", the target's " + std::to_string(target),
                  where);
  };
  need("vocabulary", c.vocab, t.vocab);
  if (c.num_target_layers > 0) need("number of target layers", c.num_target_layers, t.layers);
  if (c.taps.back() >= t.layers)
    throw error("the drafter belongs to another target: it reads layer " +
                    std::to_string(c.taps.back()) + " of " + std::to_string(t.layers),
                where,
                "layers count from 0");
  need("tapped hidden size", c.target_hidden, t.hidden);
  // The drafter reads rows of the target's embedding and ends in the target's head.
  need("hidden size", c.hidden, t.hidden);
}

drafter_config make_drafter_config(const draft_section& d, const target_config& t) {
  const auto or_target = [](int64_t own, int64_t target) { return own > 0 ? own : target; };
  // Published drafters of hybrid targets do not take over their wide heads (dflash.md 3.1); those
  // of targets with experts have one MLP of the usual width, as speculators derives it (3.4).
  const bool hybrid = t.is_hybrid();
  const int64_t intermediate = t.experts.count > 0 ? 3 * t.hidden : t.intermediate;
  drafter_config c{.layers = d.layers,
                   .hidden = or_target(d.hidden_size, t.hidden),
                   .intermediate = or_target(d.intermediate_size, intermediate),
                   .heads = or_target(d.heads, hybrid ? 32 : t.heads),
                   .kv_heads = or_target(d.kv_heads, hybrid ? 8 : t.kv_heads),
                   .head_dim = or_target(d.head_dim, hybrid ? 128 : t.head_dim),
                   .target_hidden = t.hidden,
                   .vocab = t.vocab,
                   .block_size = d.block_size,
                   .mask_token_id = d.mask_token_id,
                   .sliding_window = d.sliding_window,
                   .num_target_layers = t.layers,
                   .max_positions = t.max_positions,
                   .rope_theta = t.rope_theta,
                   .rms_eps = t.rms_eps,
                   .taps = d.taps,
                   .sliding = {},
                   .causal = d.causal};
  if (c.hidden != t.hidden)
    throw error(
        "hidden_size is " + std::to_string(c.hidden) + ", the target's " + std::to_string(t.hidden),
        "draft.hidden_size",
        "the drafter shares the target's embedding and head: leave it out");
  if (c.mask_token_id < 0)
    throw error("mask_token_id is not given",
                "draft.mask_token_id",
                "name a row of the target's embedding that text never uses");
  if (c.taps.empty() && t.layers >= 4) c.taps = default_taps(t.layers, d.layers);
  if (d.layer_types.empty()) c.sliding.assign(static_cast<size_t>(d.layers), false);
  for (const std::string& type : d.layer_types)
    c.sliding.push_back(is_sliding(type, "draft.layer_types"));
  check_drafter_config(c, "draft");
  return c;
}

}  // namespace dflash

// What needs more than one key to be checked. Done once, before any work.
#include <algorithm>
#include <charconv>
#include <set>

#include "config/error.hpp"
#include "config/values.hpp"

namespace dflash {

namespace {

using namespace detail;

std::string text(std::int64_t value) {
  return std::to_string(value);
}

// What a run of simulated lanes can do without.
bool is_needed(const key& k, const run_config& c) {
  if (!is_simulated(c)) return true;
  const bool sizes = c.sim.hidden_size > 0 && c.sim.layers > 0 && c.sim.vocab_size > 0;
  return k.name != "data.train" && k.name != "draft.mask_token_id" &&
         (k.name != "target.path" || !sizes);
}

void check_required(const run_config& c) {
  for (const key& k : keys()) {
    if (!k.required || !is_needed(k, c)) continue;
    const auto value = print_value(k, c);
    if (value && *value != "\"\"" && *value != "[]") continue;
    std::string hint = std::string(k.help);
    if (k.name == "target.path" && is_simulated(c))
      hint =
          "name a folder with a config.json, or set sim.hidden_size, sim.layers and "
          "sim.vocab_size";
    if (k.name == "draft.taps")
      hint +=
          " For n target layers and L draft layers the usual ones are round(1 + i * (n - 4) / "
          "(L - 1)), i = 0 to L - 1.";
    throw error(std::string(k.name) + " is not set", std::string(k.name), hint);
  }
}

void check_draft(const draft_section& d) {
  for (std::size_t i = 1; i < d.taps.size(); ++i)
    if (d.taps[i] <= d.taps[i - 1])
      throw error("taps must rise: " + text(d.taps[i]) + " comes after " + text(d.taps[i - 1]),
                  "draft.taps",
                  "list each target layer once, lowest first");
  if (!d.layer_types.empty() && std::cmp_not_equal(d.layer_types.size(), d.layers))
    throw error("layer_types has " + std::to_string(d.layer_types.size()) + " entries for " +
                    text(d.layers) + " layers",
                "draft.layer_types",
                "give one entry a layer, or none (all full)");
  const bool slides = std::find(d.layer_types.begin(), d.layer_types.end(), "sliding_attention") !=
                      d.layer_types.end();
  if (slides && d.sliding_window == 0)
    throw error("a layer is sliding, but there is no window",
                "draft.sliding_window",
                "set it in tokens, e.g. sliding_window = 2048");
  if (!slides && d.sliding_window > 0)
    throw error("a window of " + text(d.sliding_window) + " is set, but no layer is sliding",
                "draft.sliding_window",
                "set draft.layer_types, or sliding_window = 0");
  if (d.heads > 0 && d.kv_heads > 0 && d.heads % d.kv_heads != 0)
    throw error(
        text(d.heads) + " query heads cannot share " + text(d.kv_heads) + " key and value heads",
        "draft.kv_heads",
        "heads must be a multiple of kv_heads");
  if (d.head_dim % 2 != 0)
    throw error("a head of width " + text(d.head_dim) + " cannot be rotated",
                "draft.head_dim",
                "it must be even");
  if (d.init.empty())
    throw error("init is empty", "draft.init", "\"random\", \"target\" or the folder of a drafter");
}

void check_data(const run_config& c) {
  if (c.data.row_tokens < c.draft.block_size)
    throw error("a row of " + text(c.data.row_tokens) + " tokens is shorter than a block of " +
                    text(c.draft.block_size),
                "data.row_tokens",
                "make rows at least as long as draft.block_size");
  if (!c.data.hidden_states.empty() && c.data.keep_hidden_states > 0)
    throw error("hidden states are read from data.hidden_states, so that none are kept",
                "data.keep_hidden_states",
                "leave one of the two out");
  std::set<std::string> train;
  for (const std::string& path : c.data.train)
    if (!train.insert(path).second)
      throw error(
          "a shard is listed twice: " + path, "data.train", "list it once; see data.epochs");
}

void check_eval(const run_config& c) {
  const bool nothing = c.data.held_out.empty() && c.eval.prompts.empty();
  if (c.eval.every > 0 && nothing)
    throw error("there is nothing to evaluate with",
                "eval.every",
                "give prompt shards in eval.prompts, token shards in data.held_out, or both");
  if (c.eval.every == 0 && c.eval.patience > 0)
    throw error("patience is set, but nothing is evaluated",
                "eval.patience",
                "set eval.every, or leave patience out");
  if (c.eval.every == 0 && !nothing)
    throw error("held-out data is given, but nothing is evaluated",
                c.eval.prompts.empty() ? "data.held_out" : "eval.prompts",
                "set eval.every in steps, or leave it out");
  for (const std::string& path : c.data.held_out)
    if (std::count(c.data.train.begin(), c.data.train.end(), path) > 0)
      throw error("a shard is trained on and held out: " + path,
                  "data.held_out",
                  "leave it out of one of the two");
}

void check_loss(const run_config& c) {
  const loss_section& loss = c.loss;
  double sum = 0.0;
  for (const auto& [name, weight] : loss.terms) sum += weight;
  if (!(sum > 0.0))
    throw error("no loss term has a weight", "loss.terms", "e.g. terms = { ce = 1.0 }");
  const auto has = [&](const char* name) {
    const auto term = loss.terms.find(name);
    return term != loss.terms.end() && term->second > 0.0;
  };
  const loss_section unset;
  if (loss.weighting == "dpace" && !has("ce"))
    throw error("D-PACE weighs by the probability of the data's tokens, but ce has no weight",
                "loss.weighting",
                "give ce a weight in loss.terms, or set weighting = \"decay\"");
  if (loss.weighting != "dpace" && loss.dpace_alpha != unset.dpace_alpha)
    throw error("dpace_alpha is set, but the weighting is \"" + loss.weighting + "\"",
                "loss.dpace_alpha",
                "leave it out, or set loss.weighting = \"dpace\"");
  if (loss.temperature != unset.temperature && !has("kl"))
    throw error("a temperature is set, but kl has no weight, and no other term has one",
                "loss.temperature",
                "leave it out, or give kl a weight in loss.terms");
  if (loss.prefix > 0.0 && c.draft.block_size < 3)
    throw error("a block of 2 has no place for a prefix longer than the anchor",
                "loss.prefix",
                "set prefix = 0.0, or a larger draft.block_size");
}

void check_optim(const optim_section& optim) {
  if (optim.steps > 0) check_schedule(optim, static_cast<std::uint64_t>(optim.steps));
  if (optim.schedule == "wsd" && optim.warmup.steps < 0 && optim.decay.steps < 0 &&
      optim.warmup.share + optim.decay.share > 1.0)
    throw error("warm-up and decay together are longer than the run",
                "optim.decay",
                "their shares may add up to 1.0 at most");
}

void check_sim(const run_config& c) {
  const auto count = [](const std::vector<std::string>& lanes) {
    return std::count_if(
        lanes.begin(), lanes.end(), [](const auto& lane) { return parse_lane(lane).sim; });
  };
  const auto &targets = c.layout.targets, &drafters = c.layout.drafters;
  const auto simulated = count(targets) + count(drafters);
  if (simulated == 0) return;
  if (std::cmp_not_equal(simulated, targets.size() + drafters.size()))
    throw error("simulated lanes beside real ones: nothing could be trained",
                count(drafters) == 0 ? "layout.targets" : "layout.drafters",
                "make all lanes of targets and drafters sim:I, or none");
  if (c.run.resume)
    throw error("a run of simulated lanes writes no checkpoint to go on from",
                "run.resume",
                "leave it out");
  if (c.eval.every > 0)
    throw error(
        "simulated lanes train nothing that could be evaluated", "eval.every", "leave it out");
  if (c.data.keep_hidden_states > 0 || !c.data.hidden_states.empty())
    throw error("simulated lanes make no hidden states that could be kept or read",
                c.data.hidden_states.empty() ? "data.keep_hidden_states" : "data.hidden_states",
                "leave it out");
}

void check_lanes(const std::vector<std::string>& lanes, const char* name) {
  if (lanes.empty())
    throw error(std::string(name) + " is empty", name, "name at least one lane, e.g. [\"cpu:0\"]");
  std::set<std::string> seen;
  for (const std::string& lane : lanes) {
    try {
      parse_lane(lane);
    } catch (const error& problem) {
      throw error(problem.what_, name, problem.hint);
    }
    if (!seen.insert(lane).second)
      throw error("lane " + lane + " is listed twice", name, "give each lane another number");
  }
}

void check_net(const run_config& c) {
  if (c.net.timeout < 4 * c.net.heartbeat)
    throw error("a timeout of less than 4 heartbeats would lose peers that live",
                "net.timeout",
                "a longer timeout, or a shorter net.heartbeat");
}

void check_metrics(const run_config& c) {
  if (!c.profile.trace.empty()) parse_step_window(c.profile.trace);
}

}  // namespace

step_window parse_step_window(const std::string& given) {
  const auto refuse = [&](const std::string& what) {
    throw error(what + ": \"" + given + "\"",
                "profile.trace",
                "first and last step, both counted from 1, e.g. \"steps 10..20\"");
  };
  std::string text = given.starts_with("steps ") ? given.substr(6) : given;
  const auto dots = text.find("..");
  if (dots == std::string::npos) refuse("no window of steps");
  const auto number = [&](std::string_view digits) {
    std::uint64_t value = 0;
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (status != std::errc() || end != digits.data() + digits.size()) refuse("no window of steps");
    return value;
  };
  const step_window window{number(std::string_view(text).substr(0, dots)),
                           number(std::string_view(text).substr(dots + 2))};
  if (window.first == 0 || window.last < window.first) refuse("a window without steps");
  return window;
}

void validate(const run_config& config) {
  check_lanes(config.layout.targets, "layout.targets");
  check_lanes(config.layout.drafters, "layout.drafters");
  check_sim(config);
  check_required(config);
  check_draft(config.draft);
  check_data(config);
  check_eval(config);
  check_loss(config);
  check_optim(config.optim);
  check_metrics(config);
  check_net(config);
}

}  // namespace dflash

// One short run of drafting: acceptance, and whether a usual mistake, undone, would accept more.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "config/error.hpp"
#include "model/doctor.hpp"
#include "model/drafter_decode.hpp"
#include "model/eval.hpp"
#include "model/generate.hpp"

namespace dflash {

namespace {

// Below this many drafts nothing is said about shares.
constexpr int64_t enough = 50;

finding of(const char* check,
           health level,
           std::string what,
           std::string why = {},
           std::string mend = {}) {
  return {.check = check,
          .level = level,
          .what = std::move(what),
          .why = std::move(why),
          .mend = std::move(mend)};
}

// The drafter with another configuration on the same answers.
draft_counts count_with(const drafter_config& config,
                        const drafter_weights& weights,
                        const std::shared_ptr<const target>& model,
                        std::span<const walk_item> items,
                        const std::vector<int>& kept) {
  drafter_proposer drafts{std::make_shared<const draft_model>(config, weights, model)};
  return count_drafts(drafts, with_taps(items, kept, config.taps));
}

std::optional<drafter_config> shifted_taps(drafter_config config, int by, int64_t layers) {
  for (int& tap : config.taps) tap += by;
  if (config.taps.front() < 0 || config.taps.back() >= layers) return std::nullopt;
  return config;
}

std::string length_text(const draft_trial& t) {
  return fmt::format("accept_len {:.3f} {}", t.accept_len, t.name);
}

std::vector<double> shares(const std::vector<int64_t>& part, const std::vector<int64_t>& whole) {
  std::vector<double> out;
  for (size_t k = 0; k < whole.size(); ++k)
    out.push_back(whole[k] == 0 ? 0.0
                                : static_cast<double>(part[k]) / static_cast<double>(whole[k]));
  return out;
}

}  // namespace

finding check_acceptance(const doctor_run& run) {
  const auto shares = fmt::format("{:.2f}", fmt::join(run.accepted_at, " "));
  const std::string what =
      fmt::format("tau {:.3f} over {} answers ({} tokens), drafts accepted: {}",
                  run.tau,
                  run.prompts,
                  run.answer_tokens,
                  shares.empty() ? "none" : shares);
  if (run.trials.front().anchors < enough)
    return of("acceptance",
              health::warn,
              what,
              "too few tokens to judge by",
              "give more or longer prompts: --prompts, --max-new-tokens");
  if (run.tau == 1.0)
    return of("acceptance",
              health::fail,
              what,
              "acceptance of exactly 1: not one draft was right, which training alone never gives; "
              "usual causes are taps, mask token, positions, or weights that were never loaded",
              "mend what is named above; else compare its training with this program's");
  if (run.tau < 1.05)
    return of(
        "acceptance",
        health::fail,
        what,
        "far below any trained drafter: labels, mask or taps of training and drafting differ, "
        "or the drafter was made for another target or template",
        "mend what is named above and below; else train it longer");
  if (run.tau < 1.3)
    return of("acceptance",
              health::warn,
              what,
              "verifying costs about what it saves",
              "train longer, on answers that the target wrote itself");
  return of("acceptance", health::ok, what);
}

finding check_tap_shift(const draft_trial& given,
                        const std::map<int, draft_trial>& shifted,
                        const std::vector<int>& taps) {
  std::string seen = length_text(given);
  int best = 0;
  for (const auto& [by, trial] : shifted) {
    seen += ", " + length_text(trial);
    if (!clearly_better(trial, given)) continue;
    if (best == 0 || trial.accept_len > shifted.at(best).accept_len) best = by;
  }
  if (best == 0) return of("tap_shift", health::ok, seen);
  std::vector<int> meant = taps;
  for (int& tap : meant) tap += best;
  return of("tap_shift",
            health::fail,
            seen,
            "the taps are off by one: speculators and vLLM name a layer by what enters it, z-lab "
            "by what leaves it",
            fmt::format("set target_layer_ids to {}", fmt::join(meant, ", ")));
}

finding check_labels(const draft_counts& counts) {
  const double own = counts.right_share(0);
  for (const int shift : {1, -1})
    if (counts.drafts >= enough && counts.right_share(shift) > 0.1 &&
        counts.right_share(shift) > 1.5 * own)
      return of("labels",
                health::fail,
                fmt::format("draft k is the token at its own place in {:.0f} %, at the {} one in "
                            "{:.0f} %",
                            100 * own,
                            shift > 0 ? "next" : "previous",
                            100 * counts.right_share(shift)),
                "it was trained with labels shifted by one: slot k has to predict the token at its "
                "own place",
                shift > 0
                    ? "a drafter with sample_from_anchor needs an engine that reads that key; "
                      "else train again"
                    : "train again with slot k labelled by the token at anchor + k");
  return of("labels",
            health::ok,
            fmt::format("{:.0f} % of all drafts are right at their own place", 100 * own));
}

finding check_causality(const draft_trial& given, const draft_trial& flipped, bool causal) {
  if (!clearly_better(flipped, given))
    return of("causality", health::ok, length_text(given) + ", " + length_text(flipped));
  return of("causality",
            health::fail,
            length_text(given) + ", " + length_text(flipped),
            fmt::format("slots of a block see {} here, and it was trained the other way",
                        causal ? "only earlier ones" : "each other"),
            fmt::format("set is_causal to {}", causal ? "false" : "true"));
}

// What the drafts are, whatever they should be.
finding check_drafts(const draft_counts& counts, int64_t mask_token_id) {
  if (counts.drafts < enough) return of("drafts", health::ok, "too few to judge by");
  const auto most = std::max_element(
      counts.proposed.begin(), counts.proposed.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      });
  const double share = static_cast<double>(most->second) / static_cast<double>(counts.drafts);
  const auto masks = counts.proposed.find(static_cast<int32_t>(mask_token_id));
  const double masked = masks == counts.proposed.end() ? 0.0
                                                       : static_cast<double>(masks->second) /
                                                             static_cast<double>(counts.drafts);
  if (masked > 0.05)
    return of("drafts",
              health::fail,
              fmt::format("{:.0f} % of the drafts are the mask token", 100 * masked),
              "places to fill were trained as labels, or the head is another one",
              "check labels and loss mask of its training");
  if (share > 0.9)
    return of("drafts",
              health::fail,
              fmt::format("{:.0f} % of the drafts are token {}", 100 * share, most->first),
              "the drafter collapsed to one token, or reads nothing of its context",
              "check taps and weights; train again with a lower rate");
  const auto right = counts.right.find(0);
  const auto all = counts.compared.find(0);
  for (size_t k = 1; right != counts.right.end() && k < right->second.size(); ++k) {
    const auto first = static_cast<double>(right->second[0]) /
                       static_cast<double>(std::max<int64_t>(1, all->second[0]));
    int64_t later = 0, offered = 0;
    for (size_t j = k; j < right->second.size(); ++j) {
      later += right->second[j];
      offered += all->second[j];
    }
    if (first > 0.3 && later == 0 && offered >= 2 * enough)
      return of("drafts",
                health::warn,
                fmt::format("drafts {} to {} are never right", k + 1, right->second.size()),
                "it was trained with shorter blocks",
                fmt::format("set block_size to {}", k + 1));
  }
  return of(
      "drafts",
      health::ok,
      fmt::format("{} tokens, none in more than {:.0f} %", counts.proposed.size(), 100 * share));
}

token_documents self_written_prompts(const target& model, int64_t count, int64_t tokens) {
  const int32_t first =
      static_cast<int32_t>(std::clamp<int64_t>(model.config().bos, 0, model.config().vocab - 1));
  token_documents starts;
  for (int64_t i = 0; i < count; ++i) starts.append(std::vector<int32_t>{first}, {});
  generate_options options;
  options.max_new_tokens = tokens;
  options.ignore_eos = true;
  options.sampling = {.temperature = 1, .top_p = 0.9, .seed = 1};
  const auto texts = generate_group(model, starts, 0, count, options, {});
  token_documents prompts;
  for (const answer& text : *texts) {
    std::vector<int32_t> ids = {first};
    for (const int32_t id : text.ids)  // a prompt goes up to the end of its text
      if (std::count(model.config().eos.begin(), model.config().eos.end(), id) == 0)
        ids.push_back(id);
      else
        break;
    prompts.append(ids, {});
  }
  return prompts;
}

doctor_run try_drafting(std::shared_ptr<const target> model,
                        const drafter_config& config,
                        const drafter_weights& weights,
                        const token_documents& prompts,
                        const doctor_options& options) {
  doctor_run run;
  const int64_t layers = model->config().layers;
  const auto kept = taps_with_neighbours(config.taps, layers);
  const decode_options decoding{.max_new_tokens = options.max_new_tokens};
  std::vector<walk_item> items =
      make_walk_items(*model, prompts, 0, prompts.size(), kept, decoding);
  std::erase_if(items, [](const walk_item& i) {
    return static_cast<int64_t>(i.tokens.size()) < i.prompt_tokens + 2;  // nothing to draft
  });
  run.prompts = static_cast<int64_t>(items.size());
  for (const walk_item& item : items)
    run.answer_tokens += static_cast<int64_t>(item.tokens.size()) - item.prompt_tokens;
  const auto try_with = [&](std::string name, const drafter_config& c) {
    run.trials.push_back(trial_of(std::move(name), count_with(c, weights, model, items, kept)));
    return run.trials.back();
  };

  const draft_counts counts = count_with(config, weights, model, items, kept);
  const draft_trial given = trial_of("as given", counts);
  run.trials.push_back(given);
  if (const auto own = counts.right.find(0); own != counts.right.end())
    run.accuracy_at = shares(own->second, counts.compared.at(0));
  drafter_proposer drafts{std::make_shared<const draft_model>(config, weights, model)};
  const auto walked = walk_answers(drafts, with_taps(items, kept, config.taps));
  run.tau = walked.tau();
  run.accepted_at = shares(walked.walk.accepted_at, walked.walk.offered_at);
  run.findings.push_back(check_acceptance(run));

  std::map<int, draft_trial> shifted;
  for (const int by : {-1, 1})
    if (const auto other = shifted_taps(config, by, layers))
      shifted[by] = try_with(fmt::format("with taps shifted by {:+}", by), *other);
  run.findings.push_back(check_tap_shift(given, shifted, config.taps));
  run.findings.push_back(check_labels(counts));
  drafter_config flipped = config;
  flipped.causal = !config.layer_causal(0);
  run.findings.push_back(
      check_causality(given, try_with("with causality flipped", flipped), config.layer_causal(0)));
  drafter_config based = config;
  based.rope_theta = model->config().rope_theta;
  if (based.rope_theta != config.rope_theta) try_with("with the target's RoPE base", based);
  run.findings.push_back(check_drafts(counts, config.mask_token_id));
  return run;
}

}  // namespace dflash

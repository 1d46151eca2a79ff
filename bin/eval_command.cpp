// `dflash eval`: held-out figures of a drafter (or of prompt lookup) on prompt shards: tau and
// accept_len by walking the target's greedy answers, speed and equality by real decoding of a
// stated part.
#include <ATen/Parallel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bin/commands.hpp"
#include "bin/device_option.hpp"
#include "bin/drafter_source.hpp"
#include "bin/eval_report.hpp"
#include "config/error.hpp"
#include "data/files.hpp"
#include "data/shards.hpp"
#include "device/lane_streams.hpp"
#include "model/drafter_decode.hpp"
#include "model/eval.hpp"
#include "model/lookup.hpp"
#include "model/target.hpp"

namespace dflash {

namespace {

// Prompts whose answers and taps are in memory at once.
constexpr int64_t group_prompts = 64;
constexpr int64_t check_slots = 32;

struct eval_options {
  std::string target, drafter;
  std::vector<std::string> prompts;  // NAME=SHARD
  int64_t max_new_tokens = 128;
  int64_t first = 0;  // prompts of each set; 0 = all
  int64_t decode = 0;
  int64_t check = 0;
  std::string dtype = "auto", decode_dtype = "bf16", check_dtype = "fp32";
  sampling_options sampling;
  std::string json, cycles, device = "cpu";
  int threads = 0;
};

using clock = std::chrono::steady_clock;
double seconds_since(clock::time_point start) {
  return std::chrono::duration<double>(clock::now() - start).count();
}

struct prompt_set {
  std::string name, shard;
  token_documents prompts = {};
  int64_t size = 0;  // prompts used
};

// A target in one compute dtype and the drafter beside it.
struct model_pair {
  std::shared_ptr<const target> model;
  std::unique_ptr<proposer> drafts;
};

class evaluation {
public:
  explicit evaluation(eval_options options)
      : options_{std::move(options)}, device_{parse_device(options_.device)} {
    shape_ = read_target_config(options_.target);
    report_.drafter_is_lookup = options_.drafter == "lookup";
    if (!report_.drafter_is_lookup) {
      drafter_folder_ = find_drafter_folder(options_.drafter);
      check_drafter_fits(read_drafter_config(drafter_folder_), shape_, drafter_folder_.string());
    }
    check_sampling(options_.sampling);
    if (options_.sampling.temperature > 0 && options_.check > 0)
      throw error("drawn texts are not compared: rounding decides draws near a boundary",
                  "--check",
                  "compare greedy texts: leave --temperature out");
    read_prompts();
    if (!options_.cycles.empty()) cycles_.emplace(options_.cycles);
    if (options_.threads > 0) at::set_num_threads(options_.threads);
  }

  eval_report run() {
    use_devices(std::array{device_});
    report_.target = options_.target;
    report_.drafter = report_.drafter_is_lookup ? "lookup" : drafter_folder_.string();
    report_.max_new_tokens = options_.max_new_tokens;
    report_.device = options_.device;
    report_.threads = at::get_num_threads();
    report_.sampling = options_.sampling;
    const auto walk_dtype = choose_compute_dtype(options_.dtype, device_);
    walk(walk_dtype);
    if (options_.decode > 0) decode(choose_compute_dtype(options_.decode_dtype, device_));
    if (options_.check > 0) check(choose_compute_dtype(options_.check_dtype, device_));
    if (cycles_) cycles_->commit();
    return std::move(report_);
  }

private:
  void read_prompts() {
    std::set<std::string> names;
    for (const auto& given : options_.prompts) {
      const auto equals = given.find('=');
      if (equals == 0 || equals == std::string::npos || equals + 1 == given.size())
        throw error("a prompt set is given as NAME=SHARD", "--prompts " + given);
      prompt_set set{.name = given.substr(0, equals), .shard = given.substr(equals + 1)};
      if (!names.insert(set.name).second)
        throw error("two prompt sets have the same name", "--prompts " + given);
      set.prompts = read_prompt_shard(set.shard, shape_.vocab);
      set.size = set.prompts.size();
      if (options_.first > 0) set.size = std::min(set.size, options_.first);
      for (int64_t i = 0; i < set.size; ++i) {
        const auto length = static_cast<int64_t>(set.prompts.ids(i).size());
        if (length == 0 || length > shape_.max_positions)
          throw error("a prompt has " + std::to_string(length) + " tokens; the target takes 1 to " +
                          std::to_string(shape_.max_positions),
                      set.shard + ", document " + std::to_string(i),
                      "leave it out when making the shard");
      }
      sets_.push_back(std::move(set));
      report_.sets.push_back({.name = sets_.back().name, .shard = sets_.back().shard});
    }
  }

  // The models of one dtype; those of another are let go first.
  const model_pair& models(compute_dtype dtype) {
    if (models_.model && models_.model->dtype() == dtype) return models_;
    const auto started = clock::now();
    models_ = {};
    models_.model = target::load(options_.target, dtype, device_);
    report_.target_hash = models_.model->content_hash();
    if (report_.drafter_is_lookup) {
      models_.drafts = std::make_unique<lookup_proposer>();
    } else {
      drafter_config config;
      const auto weights = load_drafter(drafter_folder_, *models_.model, config);
      models_.drafts = std::make_unique<drafter_proposer>(
          std::make_shared<const draft_model>(config, weights, models_.model));
    }
    report_.max_drafts = models_.drafts->max_drafts();
    report_.load_seconds += seconds_since(started);
    return models_;
  }

  void walk(compute_dtype dtype) {
    report_.dtype = name_of(dtype);
    const auto& use = models(dtype);
    lookup_proposer lookup;
    const decode_options options{.max_new_tokens = options_.max_new_tokens,
                                 .sampling = options_.sampling};
    for (size_t s = 0; s < sets_.size(); ++s) {
      auto& out = report_.sets[s];
      for (int64_t first = 0; first < sets_[s].size; first += group_prompts) {
        const int64_t last = std::min(first + group_prompts, sets_[s].size);
        auto started = clock::now();
        const auto items =
            make_walk_items(*use.model, sets_[s].prompts, first, last, use.drafts->taps(), options);
        report_.answer_seconds += seconds_since(started);
        started = clock::now();
        int64_t prompt = first;
        out.walk.add(
            walk_answers(*use.drafts, items, [&](const walk_item& item, const walk_trace& trace) {
              write_cycles(sets_[s].name, prompt++, item, trace);
            }));
        out.lookup.add(walk_answers(lookup, items));
        report_.walk_seconds += seconds_since(started);
        spdlog::info("{}: {} of {} prompts walked, tau {:.3f}",
                     sets_[s].name,
                     last,
                     sets_[s].size,
                     out.walk.tau());
      }
    }
  }

  // One line of --cycles.
  void write_cycles(const std::string& set,
                    int64_t prompt,
                    const walk_item& item,
                    const walk_trace& trace) {
    if (!cycles_) return;
    nlohmann::ordered_json line;
    line["set"] = set;
    line["prompt"] = prompt;
    line["prompt_tokens"] = item.prompt_tokens;
    line["answer"] =
        std::vector<int32_t>(item.tokens.begin() + item.prompt_tokens, item.tokens.end());
    auto& passes = line["passes"] = nlohmann::ordered_json::array();
    for (const auto& p : trace.passes) passes.push_back({p.at, p.offered, p.accepted, p.committed});
    line["lead"] = trace.lead;
    const std::string text = line.dump() + "\n";
    cycles_->write(std::as_bytes(std::span(text)));
  }

  // `wanted` prompts spread evenly over a set.
  static std::vector<int64_t> spread(int64_t size, int64_t wanted) {
    const int64_t count = std::min(size, wanted);
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < count; ++i) indices.push_back(i * size / count);
    return indices;
  }

  void decode(compute_dtype dtype) {
    report_.decode_dtype = name_of(dtype);
    const auto& use = models(dtype);
    const auto started = clock::now();
    decode_options options{
        .max_new_tokens = options_.max_new_tokens, .max_slots = 1, .sampling = options_.sampling};
    const bool drawn = options_.sampling.temperature > 0;
    const auto answer = [&](std::span<const int32_t> prompt, bool speculative) {
      return std::move(
          decode_prompts(
              *use.model, {&prompt, 1}, speculative ? use.drafts.get() : nullptr, options)
              .front());
    };
    answer(sets_.front().prompts.ids(0), false);  // warms caches, allocator and thread pool
    answer(sets_.front().prompts.ids(0), true);
    for (size_t s = 0; s < sets_.size(); ++s) {
      auto& out = report_.sets[s].decode;
      out.prompts = spread(sets_[s].size, options_.decode);
      for (size_t i = 0; i < out.prompts.size(); ++i) {
        const auto prompt = sets_[s].prompts.ids(out.prompts[i]);
        options.first_prompt = static_cast<uint64_t>(out.prompts[i]);
        // In turns, so that a drifting clock rate favours neither.
        decoded plain, speculative;
        if (i % 2 == 0) plain = answer(prompt, false);
        speculative = answer(prompt, true);
        if (i % 2 == 1) plain = answer(prompt, false);
        out.plain.add(plain.stats);
        out.speculative.add(speculative.stats);
        if (drawn) continue;
        out.check.add(
            compare_outputs(
                *use.model, prompt, plain.tokens, speculative.tokens, use.drafts->max_drafts() + 1),
            out.prompts[i]);
      }
      spdlog::info("{}: {} prompts decoded, speed-up {:.2f}",
                   sets_[s].name,
                   out.prompts.size(),
                   out.speedup());
    }
    report_.decode_seconds = seconds_since(started);
  }

  void check(compute_dtype dtype) {
    report_.check_dtype = name_of(dtype);
    const auto& use = models(dtype);
    const auto started = clock::now();
    const decode_options options{.max_new_tokens = options_.max_new_tokens,
                                 .max_slots = check_slots};
    for (size_t s = 0; s < sets_.size(); ++s) {
      auto& out = report_.sets[s].check;
      out.prompts = spread(sets_[s].size, options_.check);
      std::vector<std::span<const int32_t>> prompts;
      for (const int64_t i : out.prompts) prompts.push_back(sets_[s].prompts.ids(i));
      const auto plain = decode_prompts(*use.model, prompts, nullptr, options);
      const auto speculative = decode_prompts(*use.model, prompts, use.drafts.get(), options);
      for (size_t i = 0; i < prompts.size(); ++i)
        out.check.add(compare_outputs(*use.model,
                                      prompts[i],
                                      plain[i].tokens,
                                      speculative[i].tokens,
                                      use.drafts->max_drafts() + 1),
                      out.prompts[i]);
      spdlog::info("{}: {} texts compared in {}, {} the same",
                   sets_[s].name,
                   out.check.prompts,
                   report_.check_dtype,
                   out.check.identical);
    }
    report_.check_seconds = seconds_since(started);
  }

  eval_options options_;
  c10::Device device_;
  target_config shape_;
  std::filesystem::path drafter_folder_;
  std::vector<prompt_set> sets_;  // as report_.sets
  model_pair models_;
  std::optional<atomic_file> cycles_;  // --cycles
  eval_report report_;
};

}  // namespace

void add_eval_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<eval_options>();
  CLI::App* command = app.add_subcommand(
      "eval",
      "Measure a drafter on held-out prompts: tau, accept_len, speed and equality of texts");
  command->add_option("--target", given->target, "Hugging Face folder of the target")->required();
  command
      ->add_option("--drafter",
                   given->drafter,
                   "run, checkpoint or z-lab folder; or 'lookup' for prompt lookup")
      ->required();
  command->add_option("--prompts", given->prompts, "prompt shards, each as NAME=SHARD")->required();
  command->add_option("--max-new-tokens", given->max_new_tokens, "per prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--first", given->first, "use only this many prompts of each set; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--device", given->device, device_help)->capture_default_str();
  command->add_option("--dtype", given->dtype, "of the walk: auto, bf16, fp32")
      ->capture_default_str();
  command
      ->add_option("--decode",
                   given->decode,
                   "prompts of each set, spread evenly, that are decoded for real and timed")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--decode-dtype", given->decode_dtype)->capture_default_str();
  command
      ->add_option("--check",
                   given->check,
                   "prompts of each set, spread evenly, whose plain and speculative texts are "
                   "compared, in batches")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--check-dtype", given->check_dtype)->capture_default_str();
  auto& drawing = given->sampling;
  command
      ->add_option("--temperature",
                   drawing.temperature,
                   "0: greedy answers; else answers are drawn, and a draft is accepted with the "
                   "target's probability of it")
      ->capture_default_str();
  command->add_option("--top-p", drawing.top_p, "draw from the likeliest tokens with this share")
      ->capture_default_str();
  command->add_option("--top-k", drawing.top_k, "draw from the K likeliest tokens; 0: all")
      ->capture_default_str();
  command->add_option("--seed", drawing.seed, "of the draws")->capture_default_str();
  command->add_option("--cycles",
                      given->cycles,
                      "write what was accepted to this file, one JSON object per prompt");
  command->add_option("--json", given->json, "write the figures to this file too");
  command->add_option("--threads", given->threads, "0: as many as Torch takes by itself")
      ->check(CLI::NonNegativeNumber);
  command->callback([given, &action] {
    action = [given] {
      const auto report = evaluation{*given}.run();
      std::fputs(to_text(report).c_str(), stdout);
      if (!given->json.empty()) write_file_atomically(given->json, to_json(report).dump(2) + "\n");
      return 0;
    };
  });
}

}  // namespace dflash

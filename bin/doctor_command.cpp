// `dflash doctor`: what is wrong with this drafter for this target.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bin/commands.hpp"
#include "bin/drafter_source.hpp"
#include "config/error.hpp"
#include "model/doctor.hpp"

namespace dflash {

namespace {

// Without a tokenizer the target writes its own prompts.
constexpr int64_t own_prompts = 8, own_prompt_tokens = 24;

struct doctor_command_options {
  std::string target, drafter, prompts;
  int64_t first = 8;
  doctor_options draft;
  std::string dtype = "fp32";
  bool json = false;
  int threads = 0;
};

struct diagnosis {
  std::vector<finding> findings;
  std::optional<doctor_run> run;
};

token_documents read_prompts(const doctor_command_options& given, const target_config& shape) {
  const auto all = read_prompt_shard(given.prompts, shape.vocab);
  token_documents some;
  for (int64_t i = 0; i < std::min(all.size(), given.first); ++i) {
    if (std::cmp_greater_equal(all.ids(i).size(), shape.max_positions))
      throw error("a prompt has " + std::to_string(all.ids(i).size()) +
                      " tokens; the target takes up to " + std::to_string(shape.max_positions),
                  given.prompts + ", document " + std::to_string(i));
    some.append(all.ids(i), {});
  }
  return some;
}

diagnosis diagnose(const doctor_command_options& given) {
  diagnosis d;
  const auto folder = find_drafter_folder(given.drafter);
  const auto files = open_doctor_files(given.target, folder);
  const auto dtype = choose_compute_dtype(given.dtype);
  std::optional<token_documents> prompts;
  if (!given.prompts.empty()) prompts = read_prompts(given, files.target);
  d.findings = check_config(files);
  for (auto& found : check_weights(files)) d.findings.push_back(std::move(found));
  const auto model = target::load(given.target, dtype);
  d.findings.push_back(check_target_hash(files, model->content_hash()));
  const auto not_tried = [&](std::string why) {
    d.findings.push_back({.check = "acceptance",
                          .level = health::warn,
                          .what = "drafting was not tried",
                          .why = std::move(why),
                          .mend = "mend what failed above, then ask again"});
  };
  const auto config = triable_config(files);
  if (!config) {
    not_tried("the drafter cannot be run as it is");
    return d;
  }
  try {
    drafter_config stored;
    const auto weights = load_drafter(folder, stored);
    if (!prompts) prompts = self_written_prompts(*model, own_prompts, own_prompt_tokens);
    d.run = try_drafting(model, *config, weights, *prompts, given.draft);
    for (const auto& found : d.run->findings) d.findings.push_back(found);
  } catch (const error& problem) {
    not_tried(problem.what_);
  }
  return d;
}

void print_text(const diagnosis& d) {
  for (const finding& f : d.findings) {
    fmt::print("{:<4}  {:<12} {}", name_of(f.level), f.check, f.what);
    if (!f.why.empty()) fmt::print(": {}", f.why);
    if (!f.mend.empty()) fmt::print(". {}", f.mend);
    fmt::print("\n");
  }
}

nlohmann::ordered_json to_json(const diagnosis& d, bool healthy) {
  nlohmann::ordered_json out;
  out["healthy"] = healthy;
  auto& checks = out["checks"] = nlohmann::ordered_json::array();
  for (const finding& f : d.findings) {
    nlohmann::ordered_json one;
    one["check"] = f.check;
    one["level"] = name_of(f.level);
    one["what"] = f.what;
    if (!f.why.empty()) one["why"] = f.why;
    if (!f.mend.empty()) one["mend"] = f.mend;
    checks.push_back(std::move(one));
  }
  if (!d.run) return out;
  out["prompts"] = d.run->prompts;
  out["answer_tokens"] = d.run->answer_tokens;
  out["tau"] = d.run->tau;
  out["accepted_at"] = d.run->accepted_at;
  out["accuracy_at"] = d.run->accuracy_at;
  auto& trials = out["trials"] = nlohmann::ordered_json::array();
  for (const draft_trial& t : d.run->trials)
    trials.push_back({{"name", t.name},
                      {"anchors", t.anchors},
                      {"accept_len", t.accept_len},
                      {"standard_error", t.standard_error}});
  return out;
}

int run_doctor(const doctor_command_options& given) {
  if (given.threads > 0) at::set_num_threads(given.threads);
  const diagnosis d = diagnose(given);
  const bool healthy = std::none_of(d.findings.begin(), d.findings.end(), [](const finding& f) {
    return f.level == health::fail;
  });
  if (given.json)
    fmt::print("{}\n", to_json(d, healthy).dump(2));
  else
    print_text(d);
  return healthy ? 0 : 1;
}

}  // namespace

void add_doctor_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<doctor_command_options>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Say what is wrong with a drafter for a target, and how to mend it");
  command->footer(
      "One line a check: ok, warn or fail, what was seen, why it matters, how to mend it. Looks "
      "at\n"
      "both folders, then drafts on a few answers of the target, as given and with the usual\n"
      "mistakes undone (taps off by one, causality).\n\n"
      "Exit codes: 0 no check failed, 1 one did, 2 the input cannot be read.");
  command->add_option("TARGET", given->target, "Hugging Face folder of the target")->required();
  command->add_option("DRAFTER", given->drafter, "run, checkpoint or z-lab folder")->required();
  command->add_option(
      "--prompts",
      given->prompts,
      "prompt shard; without one the target writes its own prompts, which say less");
  command->add_option("--first", given->first, "use this many prompts of the shard")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-new-tokens", given->draft.max_new_tokens, "per prompt")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--dtype", given->dtype, "auto, bf16 or fp32")->capture_default_str();
  command->add_flag("--json", given->json, "print one JSON object");
  command->add_option("--threads", given->threads, "0: as many as Torch takes by itself")
      ->check(CLI::NonNegativeNumber);
  command->callback([given, &action] { action = [given] { return run_doctor(*given); }; });
}

}  // namespace dflash

// `dflash generate`: the target answers prompts, batched; writes the token shard that training
// reads.
#include <ATen/Parallel.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "bin/commands.hpp"
#include "bin/device_option.hpp"
#include "bin/stop_signal.hpp"
#include "config/error.hpp"
#include "model/generate.hpp"
#include "observe/format.hpp"
#include "observe/progress.hpp"

namespace dflash {
namespace {

struct options {
  std::string target, prompts, out, dtype = "auto", device = "cpu";
  int threads = 0;
  generate_options generate;
};

// The folder must take a file before an hour's work is done.
void check_writable(const std::filesystem::path& out) {
  const auto folder = out.has_parent_path() ? out.parent_path() : std::filesystem::path(".");
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    throw error("the folder of the output cannot be made: " + problem.message(),
                folder.string(),
                "choose another --out");
  if (std::filesystem::is_directory(out))
    throw error(
        "the output is a folder", out.string(), "give the name of a file: --out x.safetensors");
}

int run(options given) {
  if (given.threads < 0)
    throw error(
        "--threads is " + std::to_string(given.threads), "--threads", "use 0 (all) or a count");
  if (given.threads > 0) at::set_num_threads(given.threads);
  const int64_t threads = at::get_num_threads();
  check_generate(given.generate);
  const c10::Device device = parse_device(given.device);
  // A GPU has one group at once unless asked for more: each has a cache of its own there.
  given.generate.workers = device.is_cpu() || given.threads > 0
                               ? std::max<int64_t>(1, threads / given.generate.threads_per_group)
                               : 1;
  check_writable(given.out);
  const auto dtype = choose_compute_dtype(given.dtype, device);
  const auto model = target::load(given.target, dtype, device);
  const auto prompts = read_prompt_shard(given.prompts, model->config().vocab);
  if (model->config().eos.empty() && !given.generate.ignore_eos)
    spdlog::warn("{}: no end-of-text id, answers end at --max-new-tokens only", given.target);
  const int64_t groups = (prompts.size() + given.generate.group - 1) / given.generate.group;
  spdlog::info("{} prompts in {} groups, {} of them at once, {} answers at once in each, {}",
               prompts.size(),
               groups,
               std::min(groups, given.generate.workers),
               given.generate.slots,
               name_of(dtype));
  if (groups < given.generate.workers && device.is_cpu())
    spdlog::warn(
        "{} threads have work, of {}: a smaller --group or more --threads-per-group would "
        "use more",
        groups * given.generate.threads_per_group,
        threads);
  const stop_signal signals;
  progress_line line;
  const auto start = std::chrono::steady_clock::now();
  double share_at_start = -1;
  const auto report =
      generate(*model, prompts, given.out, given.generate, [&](const generate_progress& p) {
        if (share_at_start < 0) share_at_start = p.share;
        if (line.due()) {
          const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
          const double seconds = std::max(spent.count(), 1e-9);
          auto text = "prompts " + std::to_string(p.prompts_done) + "/" +
                      std::to_string(p.prompts_total) + "  " +
                      count_text(static_cast<double>(p.made_tokens) / seconds) + " tokens/s";
          if (p.share > share_at_start && p.share < 1)
            text += "  left at most " +
                    duration_text(std::chrono::duration_cast<std::chrono::nanoseconds>(
                        spent * ((1 - p.share) / (p.share - share_at_start))));
          line.show(text);
        }
        return !signals.asked();
      });
  line.finish();
  if (!report.complete) {
    std::printf("stopped after %lld of %lld groups; the same command goes on from there\n",
                static_cast<long long>(report.groups_done),
                static_cast<long long>(report.groups));
    return 0;
  }
  const auto ended = [&](answer_end end) {
    return static_cast<long long>(report.ended[static_cast<int>(end)]);
  };
  std::printf("%lld prompts, %lld new tokens",
              static_cast<long long>(report.prompts),
              static_cast<long long>(report.new_tokens));
  if (report.made_tokens > 0)
    std::printf(" (%lld in this run, %.0f tokens/s)",
                static_cast<long long>(report.made_tokens),
                static_cast<double>(report.made_tokens) / report.seconds);
  std::printf("\nanswers ended by end-of-text %lld, --max-new-tokens %lld, context %lld",
              ended(answer_end::eos),
              ended(answer_end::max_new_tokens),
              ended(answer_end::context));
  std::printf("; left out: no room %lld, bad logits %lld\nwritten to %s\n",
              ended(answer_end::no_room),
              ended(answer_end::bad_logits),
              given.out.c_str());
  return 0;
}

}  // namespace

void add_generate_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<options>();
  CLI::App* command =
      app.add_subcommand("generate", "Let the target answer prompts: text to train a drafter on");
  command->footer(
      "Prompts come from `tools/prompts` (chat template already applied). The answers are the\n"
      "target's own token ids; `tools/detokenize` turns them into text. Work is saved group by "
      "group\n"
      "in OUT.work: after Ctrl-C or a power cut the same command goes on, and ends with the same\n"
      "bytes.\n\n"
      "Example:\n  dflash generate --target .deps/models/SmolLM2-135M-Instruct --prompts "
      "prompts.safetensors \\\n    --out text.safetensors --max-new-tokens 256 --temperature 0.7 "
      "--top-p 0.9");
  auto& g = given->generate;
  command->add_option("--target", given->target, "Hugging Face folder of the target")->required();
  command->add_option("--prompts", given->prompts, "Prompt shard (safetensors)")->required();
  command->add_option("--out", given->out, "Token shard to write")->required();
  const auto number = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->capture_default_str();
  };
  number("--max-new-tokens", g.max_new_tokens, "Longest answer");
  number("--temperature", g.sampling.temperature, "0: the likeliest token always");
  number("--top-p", g.sampling.top_p, "Draw from the likeliest tokens with this share; 1: all");
  number("--top-k", g.sampling.top_k, "Draw from the K likeliest tokens; 0: all");
  number("--seed", g.sampling.seed, "Of the random draws");
  number("--dtype", given->dtype, "auto, bf16 or fp32");
  number("--device", given->device, device_help);
  number(
      "--threads",
      given->threads,
      "CPU threads, 0: all; the answers do not depend on them. On a GPU: groups at once, 0: one");
  number("--threads-per-group",
         g.threads_per_group,
         "Threads that share the work on one group; change rounding");
  number("--slots", g.slots, "Answers written at once");
  number("--group", g.group, "Prompts that are done, saved and resumed together");
  command->add_flag(
      "--ignore-eos", g.ignore_eos, "Never end before --max-new-tokens (for benchmarks)");
  command->callback([given, &action] { action = [given] { return run(*given); }; });
}

}  // namespace dflash

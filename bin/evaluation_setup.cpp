#include "bin/evaluation_setup.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "config/error.hpp"
#include "model/checkpoint.hpp"
#include "model/checkpoint_retention.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

token_documents read_prompts(const std::string& shard, const target_config& shape) {
  token_documents prompts = read_prompt_shard(shard, shape.vocab);
  for (int64_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts.ids(i).size());
    if (length == 0 || length >= shape.max_positions)
      throw error(fmt::format("a prompt has {} tokens; the target takes 1 to {} and has to answer",
                              length,
                              shape.max_positions - 1),
                  fmt::format("{}, document {}", shard, i),
                  "leave it out when making the shard");
  }
  return prompts;
}

int64_t count(const std::vector<token_documents>& prompts) {
  int64_t sum = 0;
  for (const token_documents& p : prompts) sum += p.size();
  return sum;
}

bool is_expected(uint64_t steps, uint64_t every, uint64_t total_steps) {
  return steps % every == 0 || steps == total_steps;
}

// Checkpoints on disk after the last evaluation that should have had one.
std::vector<uint64_t> missing_evaluations(const fs::path& checkpoints,
                                          uint64_t every,
                                          uint64_t evaluated,
                                          uint64_t first_step,
                                          uint64_t total_steps) {
  std::vector<uint64_t> missing;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(checkpoints, none)) {
    const auto steps = checkpoint_number(entry.path().filename());
    if (steps && *steps > evaluated && *steps <= first_step &&
        is_expected(*steps, every, total_steps) && check_checkpoint(entry.path(), false).empty())
      missing.push_back(*steps);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

// Hidden states as captured, answers of full length: what stays within the budget is kept, in the
// order in which it is made.
evaluation_shapes shapes_of(const evaluation_parts& parts, const hidden_shape& shape) {
  evaluation_shapes s;
  s.new_tokens = parts.max_new_tokens;
  const auto hold = [&](uint64_t bytes) {
    if (s.kept_bytes + bytes <= parts.budget_bytes)
      s.kept_bytes += bytes;
    else
      s.made_again_bytes = std::max(s.made_again_bytes, bytes);
  };
  if (parts.rows) {
    s.rows = true;
    for (int64_t i = 0; i < parts.rows->rows(); ++i) hold(shape.bytes());
  }
  const uint64_t token_bytes = static_cast<uint64_t>(shape.taps) * shape.row_bytes();
  for (const token_documents& p : parts.prompts)
    for (int64_t first = 0; first < p.size(); first += evaluated_at_once) {
      const int64_t last = std::min(first + evaluated_at_once, p.size());
      int64_t tokens = 0;
      for (int64_t i = first; i < last; ++i) {
        const auto length = static_cast<int64_t>(p.ids(i).size());
        tokens += length;
        s.longest = std::max(s.longest, length + parts.max_new_tokens);
      }
      s.prompts = std::max(s.prompts, last - first);
      s.prompt_tokens = std::max(s.prompt_tokens, tokens);
      hold(static_cast<uint64_t>(tokens + (last - first) * parts.max_new_tokens) * token_bytes);
    }
  return s;
}

}  // namespace

evaluation_setup outline_evaluation(const run_config& c,
                                    const target_config& target,
                                    const hidden_shape& shape,
                                    const fs::path& checkpoints) {
  evaluation_setup s;
  s.file = checkpoints.parent_path() / "evaluations.json";
  s.parts.max_new_tokens = c.eval.max_new_tokens;
  s.parts.loss = c.loss;
  s.parts.last_hidden = shape.last;
  for (const std::string& shard : c.eval.prompts) {
    s.parts.prompts.push_back(read_prompts(shard, target));
    s.settings += fmt::format(", prompts {:08x}", token_set(s.parts.prompts.back()).checksum());
  }
  if (!c.data.held_out.empty()) {
    const std::vector<fs::path> shards(c.data.held_out.begin(), c.data.held_out.end());
    s.parts.rows = std::make_shared<const batch_source>(
        read_token_shards(shards, target.vocab), c.data.row_tokens, c.data.anchors, c.run.seed);
    s.settings += fmt::format(", text {:08x}", s.parts.rows->documents().checksum());
  }
  s.shapes = shapes_of(s.parts, shape);
  return s;
}

void give_model(evaluation_setup& s,
                const run_config& c,
                const std::shared_ptr<const target>& model) {
  s.parts.model = model;
  s.settings = fmt::format("target {} {}, {} threads, drafter {}, {} new tokens",
                           model->content_hash(),
                           name_of(model->dtype()),
                           c.eval.threads,
                           c.checkpoint.export_dtype,
                           c.eval.max_new_tokens) +
               s.settings;
}

void add_evaluation(const evaluation_setup& setup,
                    const run_config& config,
                    const fs::path& checkpoints,
                    uint64_t first_step,
                    uint64_t total_steps,
                    pipeline_parts& p) {
  const auto every = static_cast<uint64_t>(config.eval.every);
  p.saves.eval_every = every;
  p.saves.patience = static_cast<uint64_t>(config.eval.patience);
  p.eval_threads = config.eval.threads;
  stored_evaluations stored = read_evaluations(setup.file, setup.settings, first_step);
  if (!stored.note.empty()) spdlog::warn("{}: {}", setup.file.string(), stored.note);
  const uint64_t evaluated = stored.all.empty() ? 0 : stored.all.back().step;
  p.saves.missing = missing_evaluations(checkpoints, every, evaluated, first_step, total_steps);
  p.saves.evaluations = std::move(stored.all);
  const uint64_t last_due = first_step == total_steps ? first_step : first_step / every * every;
  if (last_due > evaluated && (p.saves.missing.empty() || p.saves.missing.back() != last_due))
    spdlog::warn("the checkpoint at step {} was not evaluated, and is gone", last_due);

  auto given_up = std::make_shared<std::atomic<bool>>(false);
  p.give_up_evaluation = [given_up] { given_up->store(true); };
  p.evaluate = [parts = setup.parts, checkpoints, given_up] {
    evaluation_parts own = parts;
    own.give_up = [given_up] { return given_up->load(); };
    auto work = std::make_shared<evaluator_work>(std::move(own));
    return evaluation_work{[work, checkpoints](uint64_t steps) {
                             work->begin(steps, checkpoint_folder(checkpoints, steps));
                           },
                           [work] { return work->go_on(); }};
  };
  checkpoint_retention rule;
  rule.keep = config.checkpoint.keep;
  rule.keep_every = static_cast<uint64_t>(config.checkpoint.keep_every);
  p.record = [file = setup.file, settings = setup.settings, checkpoints, rule](
                 const evaluation_record& r) {
    // In this order: a resumed run makes what is not in the file again, and then the link too.
    const uint64_t best = r.history->best()->step;
    if (fs::exists(checkpoint_folder(checkpoints, best))) point_link(checkpoints, "best", best);
    write_evaluations(file, settings, r.history->all());
    checkpoint_retention now = rule;
    now.kept_steps = r.kept_steps;
    prune_checkpoints(checkpoints, now);
  };
}

std::string evaluation_text(const evaluation_setup& s, const run_config& c) {
  std::string text = fmt::format("every {} steps:", c.eval.every);
  if (s.parts.rows) text += fmt::format(" {} held-out rows,", s.parts.rows->rows());
  if (!s.parts.prompts.empty())
    text += fmt::format(
        " {} prompts of {} new tokens,", count(s.parts.prompts), s.parts.max_new_tokens);
  text += fmt::format(" {} threads, at most {} of hidden states kept",
                      c.eval.threads,
                      bytes_text(s.shapes.kept_bytes));
  if (c.eval.patience > 0) text += fmt::format(", patience {}", c.eval.patience);
  return text;
}

}  // namespace dflash

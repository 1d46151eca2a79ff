#include "model/evaluation.hpp"

#include <algorithm>
#include <chrono>
#include <span>
#include <stdexcept>
#include <utility>

#include "config/error.hpp"
#include "model/checkpoint.hpp"
#include "model/drafter_decode.hpp"
#include "model/drafter_score.hpp"

namespace dflash {

namespace {

// Answers that are walked in one piece of work: those that walk_answers takes at once.
constexpr size_t walked_at_once = 32;

uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  uint64_t sum = 0;
  for (const at::Tensor& t : tensors) sum += t.nbytes();
  return sum;
}

uint64_t bytes_of(const std::vector<walk_item>& items) {
  uint64_t sum = 0;
  for (const walk_item& item : items)
    sum += item.tokens.size() * sizeof(int32_t) + bytes_of(item.taps);
  return sum;
}

}  // namespace

struct evaluator_work::at_work {
  at_work(drafter_config config, const drafter_weights& weights, const evaluation_parts& parts)
      : proposer(std::make_shared<const draft_model>(config, weights, parts.model)) {
    if (parts.rows) scorer.emplace(config, weights, parts.loss, parts.model);
  }

  uint64_t steps = 0;
  drafter_proposer proposer;
  std::optional<drafter_scorer> scorer;
  step_sums sums;
  walk_report walk;
  int64_t rows_done = 0;
  size_t groups_done = 0, walked = 0;  // answers of the group at work that are walked
  std::vector<walk_item> made;         // of that group, if they are not kept
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

evaluator_work::evaluator_work(evaluation_parts parts) : parts_(std::move(parts)) {
  for (size_t s = 0; s < parts_.prompts.size(); ++s)
    for (int64_t first = 0; first < parts_.prompts[s].size(); first += evaluated_at_once)
      groups_.push_back(
          {s, first, std::min(first + evaluated_at_once, parts_.prompts[s].size()), {}});
  if (parts_.rows) rows_.resize(static_cast<size_t>(parts_.rows->rows()));
}

evaluator_work::~evaluator_work() = default;

uint64_t evaluator_work::kept_bytes() const {
  return kept_;
}

bool evaluator_work::keep(uint64_t bytes) {
  if (kept_ + bytes > parts_.budget_bytes) return false;
  kept_ += bytes;
  return true;
}

void evaluator_work::begin(uint64_t steps, const std::filesystem::path& checkpoint) {
  at_work_.reset();
  const std::string why = check_checkpoint(checkpoint, true);
  if (!why.empty()) throw error("the checkpoint is damaged: " + why, checkpoint.string());
  drafter_config config;
  const drafter_weights weights = load_drafter(checkpoint, *parts_.model, config);
  at_work_ = std::make_unique<at_work>(config, weights, parts_);
  at_work_->steps = steps;
}

void evaluator_work::score_row(int64_t row) {
  const auto k = static_cast<uint64_t>(row);
  const batch tokens = parts_.rows->make(k, order_);
  held_out_row& kept = rows_[static_cast<size_t>(row)];
  std::vector<at::Tensor> hidden = kept.hidden;
  if (hidden.empty()) {
    auto captured = parts_.model->capture(
        tokens.input_ids, tokens.doc_offsets, at_work_->proposer.taps(), parts_.last_hidden);
    hidden = std::move(captured.taps);
    if (parts_.last_hidden) hidden.push_back(std::move(captured.last_hidden));
    if (keep(bytes_of(hidden))) kept.hidden = hidden;
  }
  drafter_input input;
  input.taps = std::move(hidden);
  if (parts_.last_hidden) {
    input.last_hidden = input.taps.back();
    input.taps.pop_back();
  }
  input.tokens = &tokens;
  at_work_->sums += at_work_->scorer->score(input);
}

const std::vector<walk_item>& evaluator_work::answers_of(prompt_group& group,
                                                         std::vector<walk_item>& made) {
  if (!group.items.empty()) return group.items;
  if (!made.empty()) return made;
  decode_options options{.max_new_tokens = parts_.max_new_tokens};
  options.between_passes = [this] {
    if (parts_.give_up && parts_.give_up()) throw std::runtime_error("the evaluation is given up");
  };
  made = make_walk_items(*parts_.model,
                         parts_.prompts[group.shard],
                         group.first,
                         group.last,
                         at_work_->proposer.taps(),
                         options);
  if (!keep(bytes_of(made))) return made;
  group.items = std::move(made);
  made.clear();
  return group.items;
}

void evaluator_work::walk_group(size_t index) {
  at_work& w = *at_work_;
  const std::span<const walk_item> items = answers_of(groups_[index], w.made);
  const auto part = items.subspan(w.walked, std::min(walked_at_once, items.size() - w.walked));
  w.walk.add(walk_answers(w.proposer, part));
  w.walked += part.size();
  if (w.walked < items.size()) return;
  w.walked = 0;
  w.made.clear();
  ++w.groups_done;
}

std::optional<evaluation> evaluator_work::go_on() {
  DFLASH_CHECK(at_work_ != nullptr, "an evaluation that has begun");
  at_work& w = *at_work_;
  if (parts_.rows && w.rows_done < parts_.rows->rows()) {
    score_row(w.rows_done++);
    return std::nullopt;
  }
  if (w.groups_done < groups_.size()) {
    walk_group(w.groups_done);
    return std::nullopt;
  }
  evaluation result;
  result.step = w.steps;
  result.rows = w.rows_done;
  result.prompts = w.walk.prompts;
  if (parts_.rows) {
    result.loss = w.sums.mean_loss();
    result.accept_len = w.sums.accept_len();
  }
  if (!groups_.empty()) {
    result.passes = w.walk.walk.passes;
    result.committed = w.walk.walk.committed;
    result.tau = w.walk.tau();
  }
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - w.began).count();
  at_work_.reset();
  return result;
}

}  // namespace dflash

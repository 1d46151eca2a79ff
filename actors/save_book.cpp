#include "actors/save_book.hpp"

#include <algorithm>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace {

bool is_multiple(uint64_t steps, uint64_t every) {
  return every > 0 && steps % every == 0;
}

}  // namespace

save_book::save_book(save_options options)
    : options_(std::move(options)),
      history_(options_.patience),
      due_(options_.missing.begin(), options_.missing.end()),
      saved_(options_.missing.begin(), options_.missing.end()) {
  for (const evaluation& e : options_.evaluations) history_.add(e);
}

bool save_book::is_due(uint64_t steps, bool ends) const {
  return ends || is_multiple(steps, options_.every) || is_multiple(steps, options_.keep_every) ||
         is_multiple(steps, options_.eval_every);
}

void save_book::ask(save_request request, bool ends, bool complete) {
  DFLASH_CHECK(!next_, "a save that is due waits for its turn", request.steps);
  // Steps that are done again after a drafter's death are not evaluated again.
  const uint64_t before = std::max(due_.empty() ? 0 : due_.back(),
                                   history_.all().empty() ? 0 : history_.all().back().step);
  if (evaluates() && request.steps > before &&
      (is_multiple(request.steps, options_.eval_every) || (ends && complete)))
    due_.push_back(request.steps);
  next_ = std::move(request);
  flushed_ = false;
}

std::optional<save_request> save_book::begin() {
  if (!next_ || !flushed_ || writing_) return std::nullopt;
  writing_ = next_->steps;
  copied_ = false;
  next_->kept_steps = kept_steps();
  return std::exchange(next_, std::nullopt);
}

bool save_book::end(uint64_t steps, bool good) {
  if (writing_ != steps) return false;
  writing_.reset();
  const auto due = std::find(due_.begin(), due_.end(), steps);
  if (due == due_.end()) return true;
  if (good)
    saved_.insert(steps);
  else
    due_.erase(due);
  return true;
}

std::optional<uint64_t> save_book::lose() {
  const auto lost = writing_;
  if (lost) end(*lost, false);
  return lost;
}

void save_book::forget_due() {
  if (next_ && !due_.empty() && due_.back() == next_->steps) due_.pop_back();
  next_.reset();
}

std::vector<uint64_t> save_book::kept_steps() const {
  std::vector<uint64_t> steps(due_.begin(), due_.end());
  if (const evaluation* best = history_.best()) steps.push_back(best->step);
  return steps;
}

uint64_t save_book::next_after(uint64_t step) const {
  const uint64_t next = (step / options_.eval_every + 1) * options_.eval_every;
  return std::min(next, std::max(options_.total_steps, step + 1));
}

bool save_book::holds_for_copy() const {
  return writing_ && !copied_ && std::find(due_.begin(), due_.end(), *writing_) != due_.end();
}

bool save_book::holds_for_evaluation(uint64_t step) const {
  return !due_.empty() && step >= next_after(due_.front());
}

bool save_book::runs_in_any_case(uint64_t step) const {
  return due_.empty() || step <= next_after(due_.front());
}

std::optional<uint64_t> save_book::next_evaluation() {
  if (at_work_ || due_.empty() || !saved_.contains(due_.front())) return std::nullopt;
  at_work_ = true;
  return due_.front();
}

std::optional<bool> save_book::evaluated(const evaluation& result) {
  if (due_.empty() || due_.front() != result.step) return std::nullopt;
  at_work_ = false;
  due_.pop_front();
  saved_.erase(result.step);
  return history_.add(result);
}

void save_book::give_up_evaluation(uint64_t steps) {
  if (due_.empty() || due_.front() != steps) return;
  at_work_ = false;
  due_.pop_front();
  saved_.erase(steps);
}

void save_book::stop_evaluating() {
  at_work_ = false;
  due_.clear();
  saved_.clear();
  options_.eval_every = 0;
}

std::optional<uint64_t> save_book::ends_at() const {
  const auto out = history_.out_of_patience();
  if (!out || !evaluates()) return std::nullopt;
  const uint64_t next = next_after(*out);
  return next < options_.total_steps ? std::optional(next) : std::nullopt;
}

}  // namespace dflash

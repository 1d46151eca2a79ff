#include "actors/commit_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "config/error.hpp"

namespace dflash {

commit_book::commit_book(commit_options options)
    : options_(options), steps_(options.first_step), last_(options.plan.total_steps()) {}

bool commit_book::reduced(const step_reduced& m) {
  DFLASH_CHECK(
      m.step == steps_, "a drafter reduced another step than the open one", m.step, steps_);
  DFLASH_CHECK(reduced_.insert(m.rank).second, "a drafter reduced a step twice", m.step, m.rank);
  return reduced_.size() == options_.drafters;
}

std::optional<step_done> commit_book::committed(const step_committed& m) {
  DFLASH_CHECK(m.step == steps_ && reduced_.size() == options_.drafters,
               "a drafter updated without a go",
               m.step,
               steps_);
  committed_.push_back(m);
  if (committed_.size() < options_.drafters) return std::nullopt;
  const step_committed& first = committed_.front();
  for (const step_committed& other : committed_)
    if (!(other.grad_norm == first.grad_norm) || !(other.update_norm == first.update_norm) ||
        other.skipped != first.skipped)
      throw std::runtime_error(fmt::format(
          "replicas disagree after step {}: drafter {} has gradient norm {}, drafter {} has {}",
          m.step,
          first.rank,
          static_cast<double>(first.grad_norm),
          other.rank,
          static_cast<double>(other.grad_norm)));
  const step_range range = options_.plan.step(steps_);
  step_done done;
  done.step = steps_;
  done.first_k = range.first_k;
  done.end_k = range.last_k;
  done.epoch = range.epoch;
  done.grad_norm = first.grad_norm;
  done.rate = first.rate;
  done.update_norm = first.update_norm;
  done.skipped = first.skipped;
  skipped_ += first.skipped ? 1 : 0;
  ++steps_;
  reduced_.clear();
  committed_.clear();
  return done;
}

uint64_t commit_book::stop() {
  return end_at(steps_ + 1);
}

uint64_t commit_book::end_at(uint64_t steps) {
  last_ = std::min(last_, std::max(steps, steps_));
  return last_ == 0 ? 0 : options_.plan.step(last_ - 1).last_k;
}

uint64_t commit_book::next_k() const {
  return steps_ == 0 ? 0 : options_.plan.step(steps_ - 1).last_k;
}

save_request commit_book::make_save_request() const {
  save_request request;
  request.steps = steps_;
  request.next_k = next_k();
  for (const uint64_t k : dropped_)
    if (k < request.next_k) request.dropped.push_back(k);
  request.skipped_steps = skipped_;
  return request;
}

}  // namespace dflash

#include "actors/training_order.hpp"

#include <utility>

#include "config/error.hpp"
#include "data/batches.hpp"

namespace dflash {

training_order::training_order(step_plan plan,
                               uint32_t rank,
                               uint32_t drafters,
                               uint64_t first_step)
    : plan_(plan), rank_(rank), drafters_(drafters) {
  open(first_step);
}

void training_order::open(uint64_t step) {
  step_ = step;
  next_k_.reset();
  if (finished()) return;
  const step_range range = plan_.step(step);
  trained_below_ = range.first_k;
  // The first own batch of the step.
  const uint64_t ahead = (rank_ + drafters_ - range.first_k % drafters_) % drafters_;
  if (range.first_k + ahead < range.last_k) next_k_ = range.first_k + ahead;
}

bool training_order::arrived(hidden_batch m) {
  const uint64_t k = m.tokens->k;
  DFLASH_CHECK(k % drafters_ == rank_, "a batch came to the wrong drafter", k, rank_);
  if (k < trained_below_) return false;
  return aside_.emplace(k, std::move(m)).second;
}

const hidden_batch* training_order::next() const {
  if (!next_k_) return nullptr;
  const auto found = aside_.find(*next_k_);
  return found == aside_.end() ? nullptr : &found->second;
}

void training_order::trained() {
  DFLASH_CHECK(next_k_.has_value(), "trained beyond the open step", step_);
  aside_.erase(*next_k_);
  trained_below_ = *next_k_ + 1;
  *next_k_ += drafters_;
  if (*next_k_ >= plan_.step(step_).last_k) next_k_.reset();
}

bool training_order::own_part_is_done() const {
  return !finished() && !next_k_;
}

std::vector<uint64_t> training_order::held() const {
  std::vector<uint64_t> batches;
  for (const auto& [k, m] : aside_) batches.push_back(k);
  return batches;
}

void training_order::committed() {
  open(step_ + 1);
}

}  // namespace dflash

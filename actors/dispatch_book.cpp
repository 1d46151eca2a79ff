#include "actors/dispatch_book.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "config/error.hpp"

namespace dflash {

dispatch_book::dispatch_book(dispatch_options options)
    : options_(options),
      ledger_(options.drafters),
      next_k_(options.first_k),
      next_credit_k_(options.first_k) {}

dispatch_book::entry& dispatch_book::at(uint64_t k) {
  const auto found = entries_.find(k);
  DFLASH_CHECK(found != entries_.end(), "news of a batch that is not in flight", k);
  return found->second;
}

void dispatch_book::loaded(const batch_ready& m) {
  const uint64_t k = m.tokens->k;
  if (k < options_.first_k || k >= options_.end_k) return;  // the run stops before it
  entry& e = entries_[k];
  if (e.tokens) return;  // a duplicate
  e.tokens = m.tokens;
  e.kept = m.kept;
}

void dispatch_book::lane_asks(uint32_t lane) {
  if (lane == options_.targets) {
    reader_asks_ = true;
  } else if (std::find(asking_.begin(), asking_.end(), lane) == asking_.end()) {
    asking_.push_back(lane);
  }
}

void dispatch_book::granted(const room_grant& m) {
  ledger_.grant(m.consumer, m.epoch, m.limit_bytes, m.limit_batches);
}

void dispatch_book::delivered_to_drafter(uint64_t k) {
  at(k).state = batch_state::delivered;
  drops_in_a_row_ = 0;
}

bool dispatch_book::trained(const credit_return& m) {
  if (!ledger_.give_back(m.consumer, m.epoch, m.k)) return false;
  at(m.k).state = batch_state::trained;
  return true;
}

bool dispatch_book::not_finite(const capture_job& job) {
  const uint64_t k = job.tokens->k;
  entry& e = at(k);
  ++faults_;
  if (e.attempt == 0) {
    e.attempt = 1;
    e.kept = options_.targets == 0;  // without targets it can only be read again
    again_.insert(k);
    return true;
  }
  e.state = batch_state::delivered;
  if (++drops_in_a_row_ > options_.max_drops_in_a_row)
    throw std::runtime_error(
        fmt::format("{} batches in a row had hidden states that are not finite, the last one k {} "
                    "(documents {}); "
                    "the target's weights, dtype or these documents are at fault",
                    drops_in_a_row_,
                    k,
                    e.tokens->documents));
  return false;
}

void dispatch_book::kept_is_missing(uint64_t k) {
  at(k).kept = false;
  again_.insert(k);
}

void dispatch_book::refused(uint64_t k) {
  const auto found = entries_.find(k);
  if (found == entries_.end() || found->second.state == batch_state::trained) return;
  found->second.state = batch_state::dispatched;
  again_.insert(k);
}

void dispatch_book::committed(uint64_t end_k) {
  while (!entries_.empty() && entries_.begin()->first < end_k) {
    DFLASH_CHECK(entries_.begin()->second.state == batch_state::trained,
                 "a step was committed before its batch was trained",
                 entries_.begin()->first);
    entries_.erase(entries_.begin());
  }
}

void dispatch_book::stop_at(uint64_t end_k) {
  options_.end_k = std::min(options_.end_k, end_k);
}

std::optional<uint32_t> dispatch_book::lane_for(bool kept) const {
  if (kept) return reader_asks_ ? std::optional(options_.targets) : std::nullopt;
  return asking_.empty() ? std::nullopt : std::optional(asking_.front());
}

capture_job dispatch_book::start(uint64_t k, entry& e, uint32_t lane) {
  if (lane == options_.targets)
    reader_asks_ = false;
  else
    asking_.pop_front();
  e.state = batch_state::dispatched;
  capture_job job;
  job.tokens = e.tokens;
  job.lane = lane;
  job.drafter = static_cast<uint32_t>(k % options_.drafters);
  job.epoch = e.epoch;
  job.attempt = e.attempt;
  job.kept = e.kept;
  return job;
}

std::vector<capture_job> dispatch_book::take_jobs() {
  std::vector<capture_job> jobs;
  for (auto k = again_.begin(); k != again_.end();) {
    entry& e = at(*k);
    if (const auto lane = lane_for(e.kept)) {
      jobs.push_back(start(*k, e, *lane));
      k = again_.erase(k);
    } else {
      ++k;
    }
  }
  for (; next_k_ < options_.end_k; ++next_k_) {
    const auto found = entries_.find(next_k_);
    if (found == entries_.end()) break;
    entry& e = found->second;
    const auto lane = lane_for(e.kept);
    const auto drafter = static_cast<uint32_t>(next_k_ % options_.drafters);
    if (!lane || !ledger_.has_room(drafter, options_.batch_bytes)) break;
    e.epoch = ledger_.reserve(drafter, next_k_, options_.batch_bytes);
    jobs.push_back(start(next_k_, e, *lane));
  }
  return jobs;
}

uint32_t dispatch_book::take_load_credit() {
  const uint64_t wanted = std::min(next_k_ + options_.read_ahead, options_.end_k);
  if (wanted <= next_credit_k_) return 0;
  const auto credit = static_cast<uint32_t>(wanted - next_credit_k_);
  next_credit_k_ = wanted;
  return credit;
}

size_t dispatch_book::in_flight() const {
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& e) {
    return e.second.state == batch_state::dispatched || e.second.state == batch_state::delivered;
  }));
}

std::shared_ptr<const batch> dispatch_book::tokens_of(uint64_t k) const {
  const auto found = entries_.find(k);
  return found == entries_.end() ? nullptr : found->second.tokens;
}

uint32_t dispatch_book::epoch_of(uint64_t k) const {
  const auto found = entries_.find(k);
  return found == entries_.end() ? 0 : found->second.epoch;
}

}  // namespace dflash

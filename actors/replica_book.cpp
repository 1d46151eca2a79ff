#include "actors/replica_book.hpp"

#include <algorithm>

#include "config/error.hpp"

namespace dflash {

size_t replica_book::count(condition what) const {
  return static_cast<size_t>(std::count_if(
      replicas_.begin(), replicas_.end(), [&](const replica& r) { return r.now == what; }));
}

std::vector<uint32_t> replica_book::lost(uint32_t rank) {
  replicas_.at(rank) = {condition::lost, {}, {}};
  std::vector<uint32_t> copies;
  for (uint32_t i = 0; i < replicas_.size(); ++i)
    if (replicas_[i].now == condition::joins && replicas_[i].donor == rank) {
      replicas_[i].now = condition::ends;
      copies.push_back(i);
    }
  return copies;
}

void replica_book::ready(uint32_t rank) {
  DFLASH_CHECK(replicas_.at(rank).now == condition::lost, "a drafter comes back twice", rank);
  replicas_[rank].now = condition::ready;
}

bool replica_book::nobody_left() const {
  return count(condition::trains) + count(condition::joins) + count(condition::ends) == 0;
}

bool replica_book::wants_round() const {
  return !round_ && count(condition::ready) > 0 && count(condition::trains) > 0 &&
         count(condition::joins) + count(condition::ends) == 0;
}

std::vector<uint32_t> replica_book::begin_round(uint32_t attempt) {
  DFLASH_CHECK(wants_round(), "nobody could join", attempt);
  round_ = attempt;
  std::vector<uint32_t> asked;
  for (uint32_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i].state = nullptr;
    if (replicas_[i].now == condition::trains) asked.push_back(i);
  }
  return asked;
}

void replica_book::held(const replica_held& m) {
  if (round_ == m.attempt && trains(m.rank)) replicas_[m.rank].state = m.state;
}

std::optional<replica_book::joining> replica_book::join() {
  if (!round_) return std::nullopt;
  std::optional<uint32_t> donor;
  for (uint32_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i].now != condition::trains) continue;
    if (!replicas_[i].state) return std::nullopt;
    if (!donor) donor = i;
  }
  round_.reset();
  if (!donor) return std::nullopt;  // all of them died meanwhile
  joining now{{}, replicas_[*donor].state, *donor};
  for (uint32_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i].state = nullptr;
    if (replicas_[i].now != condition::ready) continue;
    replicas_[i].now = condition::joins;
    replicas_[i].donor = donor;
    now.ranks.push_back(i);
  }
  return now;
}

std::optional<uint32_t> replica_book::restore() {
  if (!nobody_left()) return std::nullopt;
  round_.reset();
  for (uint32_t i = 0; i < replicas_.size(); ++i)
    if (replicas_[i].now == condition::ready) {
      replicas_[i] = {condition::joins, {}, {}};
      return i;
    }
  return std::nullopt;
}

bool replica_book::joined(uint32_t rank) {
  if (replicas_.at(rank).now != condition::joins) return false;
  replicas_[rank] = {condition::trains, {}, {}};
  return true;
}

}  // namespace dflash

#include "actors/dispatch_book.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace {

// What read_ahead has beyond one batch a lane, and one: a lane that asks finds its batch loaded.
constexpr uint32_t credit_batches = 3;

}  // namespace

dispatch_book::dispatch_book(dispatch_options options)
    : options_(std::move(options)),
      ledger_(options_.drafters),
      grants_(options_.drafters),
      forgotten_k_(options_.first_k),
      next_k_(options_.first_k),
      next_credit_k_(options_.first_k),
      loaded_end_k_(options_.first_k) {}

dispatch_book::entry* dispatch_book::in_flight_as(uint64_t k, uint32_t epoch) {
  const auto found = entries_.find(k);
  return found == entries_.end() || found->second.epoch != epoch ? nullptr : &found->second;
}

dispatch_book::entry& dispatch_book::at(uint64_t k) {
  const auto found = entries_.find(k);
  DFLASH_CHECK(found != entries_.end(), "news of a batch that is not in flight", k);
  return found->second;
}

void dispatch_book::loaded(const batch_ready& m) {
  const uint64_t k = m.tokens->k;
  loaded_end_k_ = std::max(loaded_end_k_, k + 1);
  if (k < forgotten_k_ || k >= options_.end_k) return;  // the run stops before it
  entry& e = entries_[k];
  if (e.tokens) return;  // a duplicate
  e.tokens = m.tokens;
  e.kept = m.kept;
  e.dropped = e.dropped || options_.dropped.count(k) > 0;
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
  if (ledger_.epoch(m.consumer) != m.epoch) return;  // overtaken by a newer one
  grants_[m.consumer] = {m.life, m.slots};
  const uint64_t ahead =
      (m.consumer + options_.drafters - forgotten_k_ % options_.drafters) % options_.drafters;
  for (uint64_t k = forgotten_k_ + ahead; k < m.trained_end_k; k += options_.drafters)
    entries_[k].state = batch_state::trained;
  for (const uint64_t k : m.held) {
    entry& e = entries_[k];
    e.state = batch_state::delivered;
    e.epoch = ledger_.reserve(m.consumer, k, options_.batch_bytes);
  }
}

void dispatch_book::lane_lost(uint32_t lane) {
  if (lane == options_.targets)
    reader_asks_ = false;
  else
    std::erase(asking_, lane);
  for (const auto& [k, e] : entries_)
    if (e.state == batch_state::dispatched && e.lane == lane) again_.insert(k);
}

void dispatch_book::drafter_lost(uint32_t consumer) {
  ledger_.revoke(consumer);
  for (auto& [k, e] : entries_) {
    if (drafter_of(k) != consumer) continue;
    // Those from next_k_ on are handed out in their turn.
    if (k < next_k_) again_.insert(k);
    e.state = batch_state::loaded;
    e.epoch = 0;
    e.attempt = 0;
  }
}

void dispatch_book::delivered_to_drafter(const delivered& m) {
  if (entry* e = in_flight_as(m.k, m.epoch)) {
    e->state = batch_state::delivered;
    drops_in_a_row_ = 0;
  }
}

bool dispatch_book::trained(const credit_return& m) {
  if (!ledger_.give_back(m.consumer, m.epoch, m.k)) return false;
  at(m.k).state = batch_state::trained;
  return true;
}

dispatch_book::verdict dispatch_book::not_finite(const capture_job& job) {
  const uint64_t k = job.tokens->k;
  entry* e = in_flight_as(k, job.epoch);
  if (e == nullptr) return verdict::nobody_wants_it;
  ++faults_;
  again_.insert(k);
  if (e->attempt == 0) {
    e->attempt = 1;
    e->kept = options_.targets == 0;  // without targets it can only be read again
    return verdict::made_again;
  }
  e->dropped = true;
  if (++drops_in_a_row_ > options_.max_drops_in_a_row)
    throw std::runtime_error(
        fmt::format("{} batches in a row had hidden states that are not finite, the last one k {} "
                    "(documents {}); "
                    "the target's weights, dtype or these documents are at fault",
                    drops_in_a_row_,
                    k,
                    e->tokens->documents));
  return verdict::dropped;
}

void dispatch_book::kept_is_missing(const capture_job& job) {
  const auto found = entries_.find(job.tokens->k);
  if (found == entries_.end()) return;
  found->second.kept = false;
  if (found->second.epoch == job.epoch) again_.insert(job.tokens->k);
}

void dispatch_book::refused(uint64_t k) {
  const auto found = entries_.find(k);
  if (found == entries_.end() || found->second.state == batch_state::trained) return;
  if (found->second.epoch == 0) return;  // its drafter died
  found->second.state = batch_state::dispatched;
  again_.insert(k);
}

void dispatch_book::committed(uint64_t end_k) {
  forgotten_k_ = std::max(forgotten_k_, end_k);
  next_k_ = std::max(next_k_, end_k);
  again_.erase(again_.begin(), again_.lower_bound(end_k));
  while (!entries_.empty() && entries_.begin()->first < end_k) {
    const auto& [k, e] = *entries_.begin();
    // A restarted dispatcher may hear of a commit before it hears of the batches.
    const bool reported = ledger_.is_open(drafter_of(k));
    DFLASH_CHECK(!reported || e.state == batch_state::trained,
                 "a step was committed before its batch was trained",
                 k);
    entries_.erase(entries_.begin());
  }
}

void dispatch_book::stop_at(uint64_t end_k) {
  options_.end_k = std::min(options_.end_k, end_k);
}

std::optional<uint32_t> dispatch_book::lane_for(const entry& e) const {
  if (e.dropped) return options_.targets + 1;  // needs none
  if (e.kept) return reader_asks_ ? std::optional(options_.targets) : std::nullopt;
  return asking_.empty() ? std::nullopt : std::optional(asking_.front());
}

void dispatch_book::start(uint64_t k, entry& e, std::vector<capture_job>& jobs) {
  capture_job job;
  job.tokens = e.tokens;
  job.drafter = drafter_of(k);
  job.life = grants_[job.drafter].life;
  job.room = grants_[job.drafter].slots;
  job.epoch = e.epoch;
  job.attempt = e.attempt;
  job.kept = e.kept;
  if (e.dropped) {
    e.state = batch_state::delivered;
    dropped_.push_back(std::move(job));
    return;
  }
  job.lane = e.lane = *lane_for(e);
  if (job.lane == options_.targets)
    reader_asks_ = false;
  else
    asking_.pop_front();
  e.state = batch_state::dispatched;
  jobs.push_back(std::move(job));
}

std::vector<capture_job> dispatch_book::take_jobs() {
  std::vector<capture_job> jobs;
  // Room first, in order of k: a drafter that begins again never gets a batch before one that it
  // needs earlier, whatever lanes are free.
  for (const uint64_t k : again_) {
    entry& e = at(k);
    if (e.epoch == 0 && ledger_.has_room(drafter_of(k), options_.batch_bytes))
      e.epoch = ledger_.reserve(drafter_of(k), k, options_.batch_bytes);
  }
  for (auto k = again_.begin(); k != again_.end();) {
    entry& e = at(*k);
    if (e.epoch != 0 && e.tokens && lane_for(e)) {
      start(*k, e, jobs);
      k = again_.erase(k);
    } else {
      ++k;
    }
  }
  for (; next_k_ < options_.end_k; ++next_k_) {
    const uint32_t drafter = drafter_of(next_k_);
    const auto found = entries_.find(next_k_);
    if (!ledger_.is_open(drafter) || found == entries_.end()) break;
    entry& e = found->second;
    if (e.state != batch_state::loaded) continue;
    if (!e.tokens || !lane_for(e) || !ledger_.has_room(drafter, options_.batch_bytes)) break;
    e.epoch = ledger_.reserve(drafter, next_k_, options_.batch_bytes);
    start(next_k_, e, jobs);
  }
  return jobs;
}

std::vector<capture_job> dispatch_book::take_dropped() {
  return std::exchange(dropped_, {});
}

load_credit dispatch_book::take_load_credit() {
  const uint64_t wanted = std::min(next_k_ + options_.read_ahead, options_.end_k);
  load_credit credit{next_credit_k_, 0};
  // Several at once: each credit wakes the loader, and its answers this actor.
  const bool last = wanted == options_.end_k;
  const uint64_t least = last ? 1 : std::min(credit_batches, options_.read_ahead);
  if (wanted < next_credit_k_ + least) return credit;
  credit.batches = static_cast<uint32_t>(wanted - next_credit_k_);
  next_credit_k_ = wanted;
  return credit;
}

load_credit dispatch_book::open_load_credit() const {
  return {loaded_end_k_, static_cast<uint32_t>(next_credit_k_ - loaded_end_k_)};
}

std::string dispatch_book::describe() const {
  static constexpr const char* states[] = {"loaded", "dispatched", "delivered", "trained"};
  std::string text =
      fmt::format("next to hand out: k {}, loaded below k {}, loader may reach k {}\n",
                  next_k_,
                  loaded_end_k_,
                  next_credit_k_);
  text += fmt::format("lanes that ask: {}{}; to be made again: k {}\n",
                      fmt::join(asking_, ", "),
                      reader_asks_ ? " and the reader" : "",
                      fmt::join(again_, ", "));
  for (uint32_t i = 0; i < options_.drafters; ++i)
    text += fmt::format("drafter {}: {} batches, {} bytes reserved{}\n",
                        i,
                        ledger_.reserved_batches(i),
                        ledger_.reserved_bytes(i),
                        ledger_.is_open(i) ? "" : ", not open");
  for (const auto& [k, e] : entries_)
    if (e.state != batch_state::loaded)
      text += fmt::format("k {}: {}, lane {}\n", k, states[static_cast<size_t>(e.state)], e.lane);
  return text;
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

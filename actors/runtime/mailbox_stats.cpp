#include "actors/runtime/mailbox_stats.hpp"

#include <algorithm>
#include <utility>

namespace dflash {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

template <class T>
void raise(std::atomic<T>& peak, T value) {
  T seen = peak.load(relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value, relaxed)) {
  }
}

}  // namespace

const char* activity_text(activity what) {
  switch (what) {
    case activity::starting:
      return "starting";
    case activity::computing:
      return "computing";
    case activity::idle:
      return "idle";
    case activity::wants_job:
      return "waiting for a job";
    case activity::wants_slot:
      return "waiting for a free slot";
    case activity::wants_capture:
      return "waiting for hidden states";
    case activity::wants_batch:
      return "waiting for its next batch";
    case activity::wants_peers:
      return "waiting for other drafters";
    case activity::wants_go:
      return "waiting for the commit";
    case activity::ended:
      return "ended";
    case activity::restarting:
      return "died, restarts soon";
    case activity::retired:
      return "retired";
    case activity::count:
      break;
  }
  return "?";
}

mailbox_stats::mailbox_stats(std::string actor_name, uint64_t limit)
    : name(std::move(actor_name)),
      limit_bytes(limit),
      restarts(0),
      born_ns_(now_ns()),
      activity_since_(born_ns_) {}

mailbox_stats::mailbox_stats(const mailbox_stats& before)
    : name(before.name),
      limit_bytes(before.limit_bytes),
      restarts(before.restarts + 1),
      born_ns_(before.born_ns_),
      peak_depth_(before.peak_depth_.load(relaxed)),
      peak_bytes_(before.peak_bytes()),
      handled_(before.handled()),
      refused_(before.refused()),
      completed_(before.completed()),
      start_sum_(static_cast<uint64_t>(before.row().wait_ns)),
      service_ns_(before.service_ns()),
      wait_times_(before.wait_times_),
      service_times_(before.service_times_),
      activity_since_(now_ns()) {
  for (size_t i = 0; i < spent_.size(); ++i)
    spent_[i].store(before.spent_ns(static_cast<activity>(i)), relaxed);
}

bool mailbox_stats::arrive(uint64_t bytes) {
  if (closed_.load(relaxed)) return true;
  if (bytes > 0) {
    const uint64_t held = bytes_.fetch_add(bytes, relaxed) + bytes;
    if (limit_bytes > 0 && held > limit_bytes) {
      bytes_.fetch_sub(bytes, relaxed);
      refused_.fetch_add(1, relaxed);
      return false;
    }
    raise(peak_bytes_, held);
  }
  raise(peak_depth_, depth_.fetch_add(1, relaxed) + 1);
  const int64_t now = now_ns();
  arrival_sum_.fetch_add(static_cast<uint64_t>(now), relaxed);
  arrivals_[arrived_.fetch_add(1, relaxed) % arrivals_kept].store(now, relaxed);
  return true;
}

void mailbox_stats::begin() {
  const int64_t now = now_ns();
  if (activity_.load(relaxed) == activity::idle) {
    woken_ = true;
    set_activity(activity::computing);
  }
  start_sum_.fetch_add(static_cast<uint64_t>(now), relaxed);
  started_.fetch_add(1, relaxed);
  const uint64_t number = next_served_++;
  if (arrived_.load(relaxed) - number > arrivals_kept) return;  // written over meanwhile
  wait_times_.add(now - arrivals_[number % arrivals_kept].load(relaxed));
}

void mailbox_stats::end(int64_t began_ns, bool skipped) {
  const int64_t now = now_ns();
  if (std::exchange(woken_, false) && activity_.load(relaxed) == activity::computing)
    set_activity(activity::idle);
  service_ns_.fetch_add(now - began_ns, relaxed);
  service_times_.add(now - began_ns);
  if (skipped) {  // still in the mailbox: it waits again from now on
    arrival_sum_.fetch_add(static_cast<uint64_t>(now), relaxed);
    arrivals_[arrived_.fetch_add(1, relaxed) % arrivals_kept].store(now, relaxed);
    return;
  }
  depth_.fetch_sub(1, relaxed);
  handled_.fetch_add(1, relaxed);
}

void mailbox_stats::hold(uint64_t k) {
  for (auto& place : held_) {
    uint64_t empty = 0;
    if (place.load(relaxed) == 0 && place.compare_exchange_strong(empty, k + 1, relaxed)) return;
  }
}

void mailbox_stats::let_go(uint64_t k) {
  for (auto& place : held_) {
    uint64_t wanted = k + 1;
    if (place.load(relaxed) == wanted && place.compare_exchange_strong(wanted, 0, relaxed)) return;
  }
}

std::vector<uint64_t> mailbox_stats::held() const {
  std::vector<uint64_t> ks;
  if (is_dead()) return ks;
  for (const auto& place : held_)
    if (const uint64_t k = place.load(relaxed); k > 0) ks.push_back(k - 1);
  std::sort(ks.begin(), ks.end());
  return ks;
}

void mailbox_stats::set_activity(activity what) {
  const int64_t now = now_ns();
  const activity before = activity_.load(relaxed);
  if (before == what) return;
  const int64_t since = activity_since_.load(relaxed);
  spent_[static_cast<size_t>(before)].fetch_add(now - since, relaxed);
  if (keeps_waits_ && before != activity::computing && before != activity::starting &&
      waits_.size() < most_waits)
    waits_.push_back({activity_text(before), since, now});
  activity_since_.store(now, relaxed);
  activity_.store(what, relaxed);
}

int64_t mailbox_stats::spent_ns(activity what) const {
  const int64_t booked = spent_[static_cast<size_t>(what)].load(relaxed);
  if (activity_.load(relaxed) != what) return booked;
  return booked + std::max<int64_t>(0, now_ns() - activity_since_.load(relaxed));
}

mailbox_report mailbox_stats::row() const {
  mailbox_report r;
  const int64_t now = now_ns();
  const uint64_t started = started_.load(relaxed);
  const uint64_t arrived = arrived_.load(relaxed);
  const uint64_t waiting = arrived > started ? arrived - started : 0;
  r.actor = name;
  r.state = activity_text(current());
  r.state_ns = std::max<int64_t>(0, now - activity_since_.load(relaxed));
  r.depth = depth();
  r.peak_depth = peak_depth_.load(relaxed);
  r.bytes = bytes();
  r.limit_bytes = limit_bytes;
  r.peak_bytes = peak_bytes();
  r.handled = handled();
  r.refused = refused();
  const uint64_t waited =
      start_sum_.load(relaxed) + waiting * static_cast<uint64_t>(now) - arrival_sum_.load(relaxed);
  r.wait_ns = std::max<int64_t>(0, static_cast<int64_t>(waited));
  r.service_ns = service_ns();
  r.alive_ns = now - born_ns_;
  r.restarts = restarts;
  r.wait_p50_ns = wait_times_.quantile(0.5);
  r.wait_p99_ns = wait_times_.quantile(0.99);
  r.service_p50_ns = service_times_.quantile(0.5);
  r.service_p99_ns = service_times_.quantile(0.99);
  r.credits = is_dead() ? -1 : credits_.load(relaxed);
  r.held = held();
  for (size_t i = 0; i < spent_.size(); ++i)
    r.spent_ns.push_back(spent_ns(static_cast<activity>(i)));
  return r;
}

std::shared_ptr<mailbox_stats> mailbox_registry::add(std::string name, uint64_t limit_bytes) {
  const std::lock_guard guard(mutex_);
  for (auto& known : stats_)
    if (known->name == name) {
      failures_.erase(name);
      return known = std::make_shared<mailbox_stats>(*known);
    }
  return stats_.emplace_back(std::make_shared<mailbox_stats>(std::move(name), limit_bytes));
}

std::vector<std::shared_ptr<const mailbox_stats>> mailbox_registry::all() const {
  const std::lock_guard guard(mutex_);
  return {stats_.begin(), stats_.end()};
}

std::vector<mailbox_report> mailbox_registry::rows() const {
  std::vector<mailbox_report> rows;
  for (const auto& stats : all()) rows.push_back(stats->row());
  const std::lock_guard guard(mutex_);
  for (mailbox_report& row : rows)
    if (const auto place = places_.find(row.actor); place != places_.end())
      row.where = place->second->text();
  return rows;
}

uint64_t mailbox_registry::restarts() const {
  uint64_t sum = 0;
  for (const auto& stats : all()) sum += stats->restarts;
  return sum;
}

void mailbox_registry::bury(const std::string& name, activity what) {
  const std::lock_guard guard(mutex_);
  for (const auto& stats : stats_)
    if (stats->name == name) stats->bury(what);
}

uint64_t mailbox_registry::completed(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  for (const auto& stats : stats_)
    if (stats->name == name) return stats->completed();
  return 0;
}

void mailbox_registry::set_credits(const std::string& name, int64_t batches) {
  const std::lock_guard guard(mutex_);
  for (const auto& stats : stats_)
    if (stats->name == name) stats->set_credits(batches);
}

void mailbox_registry::set_place(const std::string& name, std::shared_ptr<const lane_place> place) {
  const std::lock_guard guard(mutex_);
  places_.insert_or_assign(name, std::move(place));
}

void mailbox_registry::set_failure(const std::string& name, std::string text) {
  const std::lock_guard guard(mutex_);
  failures_.insert_or_assign(name, std::move(text));
}

std::string mailbox_registry::failure(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  const auto found = failures_.find(name);
  return found == failures_.end() ? std::string() : found->second;
}

}  // namespace dflash

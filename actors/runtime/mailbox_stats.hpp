// Live figures of one mailbox and what its actor is doing: atomics only, written by senders and by
// the owner, read by anyone at any time (inspector, metrics, progress line) without the actor's
// help.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/runtime/lane_place.hpp"
#include "actors/runtime/live_histogram.hpp"
#include "messages/messages.hpp"

namespace dflash {

// What an actor does when it does not compute is what it waits for.
enum class activity : uint8_t {
  starting,
  computing,
  idle,           // nothing asked of it
  wants_job,      // producer: for a job from the dispatcher
  wants_slot,     // producer: for its postprocess to hand a slot on
  wants_capture,  // postprocess: for a producer
  wants_batch,    // drafter: for its next batch
  wants_peers,    // drafter: for the gradients of the others
  wants_go,       // drafter: for the coordinator
  ended,
  restarting,  // died, waits out its back-off
  retired,     // kept failing
  count
};
const char* activity_text(activity what);

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class mailbox_stats {
public:
  explicit mailbox_stats(std::string actor_name, uint64_t limit_bytes = 0);
  // Of the next life of an actor that died: its figures go on, but nothing waits here. What is
  // still sent to the dead one counts in `before`, which nobody looks at any more.
  explicit mailbox_stats(const mailbox_stats& before);
  mailbox_stats& operator=(const mailbox_stats&) = delete;

  const std::string name;
  const uint64_t limit_bytes;  // 0: no tensors come here

  // Any thread. Counts a message in; false: its bytes would pass the limit, it was counted as
  // refused. Nothing is counted once the actor has ended.
  bool arrive(uint64_t bytes);
  void close() { closed_.store(true, std::memory_order_relaxed); }
  // Owner. Service begins; ends (a skipped message stays in the mailbox). Who was idle computes
  // meanwhile, unless its handler says otherwise: an actor that is stuck in one is seen there.
  void begin();
  void end(int64_t began_ns, bool skipped);
  // Owner. Bytes that came with a message are not held any more.
  void release(uint64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Once the actor is dead: as registry's.
  void bury(activity what) { buried_.store(what, std::memory_order_relaxed); }
  // Owner. Time since the last change is booked on the activity that ends.
  void set_activity(activity what);
  // Owner. From now on each wait that ends is kept until it is taken; only the last few thousand.
  void keep_waits() { keeps_waits_ = true; }
  std::vector<wait_span> take_waits() { return std::exchange(waits_, {}); }
  // Any thread.
  activity current() const {
    const activity buried = buried_.load(std::memory_order_relaxed);
    return buried != activity::count ? buried : activity_.load(std::memory_order_relaxed);
  }
  // Booked time plus what the present activity has lasted so far.
  int64_t spent_ns(activity what) const;

  int64_t depth() const { return is_dead() ? 0 : depth_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return is_dead() ? 0 : bytes_.load(std::memory_order_relaxed); }
  bool is_retired() const { return current() == activity::retired; }
  uint64_t peak_bytes() const { return peak_bytes_.load(std::memory_order_relaxed); }
  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // Any thread. A unit of the actor's own work is done: a batch handed on, a step written.
  void complete() { completed_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

  uint64_t handled() const { return handled_.load(std::memory_order_relaxed); }
  int64_t service_ns() const { return service_ns_.load(std::memory_order_relaxed); }
  const live_histogram& wait_times() const { return wait_times_; }
  const live_histogram& service_times() const { return service_times_; }

  // Any thread. Which batches are here: on their way, waiting or worked on.
  void hold(uint64_t k);
  void let_go(uint64_t k);
  std::vector<uint64_t> held() const;  // rising
  // Any thread. Batches that it may still be sent, or has in slots of its own; none is said: -1.
  void set_credits(int64_t batches) { credits_.store(batches, std::memory_order_relaxed); }
  mailbox_report row() const;

  const uint32_t restarts;

private:
  static constexpr size_t most_held = 64;
  static constexpr size_t most_waits = 4096;
  static constexpr uint64_t arrivals_kept = 512;

  bool is_dead() const { return buried_.load(std::memory_order_relaxed) != activity::count; }

  const int64_t born_ns_;
  std::atomic<int64_t> depth_{0}, peak_depth_{0};
  std::atomic<uint64_t> bytes_{0}, peak_bytes_{0};
  std::atomic<uint64_t> arrived_{0}, started_{0}, handled_{0}, refused_{0};
  std::atomic<uint64_t> completed_{0};
  // Sums of the moments of arrival and of service; their difference is the time that messages
  // waited, in whatever order they were served. Wraps, which the difference survives.
  std::atomic<uint64_t> arrival_sum_{0}, start_sum_{0};
  std::atomic<int64_t> service_ns_{0};
  // Moments of the last arrivals, for the time that each message waits: messages are taken to be
  // served in order. [arrival % arrivals_kept]
  std::array<std::atomic<int64_t>, arrivals_kept> arrivals_{};
  uint64_t next_served_ = 0;  // owner
  live_histogram wait_times_, service_times_;
  std::array<std::atomic<uint64_t>, most_held> held_{};  // k + 1; 0: empty
  std::atomic<int64_t> credits_{-1};
  std::atomic<bool> closed_{false};
  std::atomic<activity> buried_{activity::count};  // count: not dead
  std::atomic<activity> activity_{activity::starting};
  std::atomic<int64_t> activity_since_;
  std::array<std::atomic<int64_t>, static_cast<size_t>(activity::count)> spent_{};
  bool woken_ = false;            // owner: out of idleness, by the message in service
  bool keeps_waits_ = false;      // owner
  std::vector<wait_span> waits_;  // owner
};

// All mailboxes of one actor system, in order of registration. Mailboxes of dead actors stay
// visible.
class mailbox_registry {
public:
  // A name that is there already begins its next life.
  std::shared_ptr<mailbox_stats> add(std::string name, uint64_t limit_bytes = 0);
  std::vector<std::shared_ptr<const mailbox_stats>> all() const;
  std::vector<mailbox_report> rows() const;
  // Of all actors together.
  uint64_t restarts() const;
  // An actor that is dead: what it waits for; what lay in its mailbox is in flight no more.
  void bury(const std::string& name, activity what);
  uint64_t completed(const std::string& name) const;
  void set_credits(const std::string& name, int64_t batches);
  // Where the lane of an actor is, over all its lives.
  void set_place(const std::string& name, std::shared_ptr<const lane_place> place);

  // Why an actor ended by an exception, by its name; empty: it did not. The newest reason counts.
  void set_failure(const std::string& name, std::string text);
  std::string failure(const std::string& name) const;

private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<mailbox_stats>> stats_;
  std::map<std::string, std::string> failures_;  // by name
  std::map<std::string, std::shared_ptr<const lane_place>> places_;
};

}  // namespace dflash

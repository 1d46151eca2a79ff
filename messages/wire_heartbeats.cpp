#include "messages/wire_heartbeats.hpp"

#include "messages/wire_exchange.hpp"

namespace dflash {

wire_heartbeats::wire_heartbeats(wire_stream& stream,
                                 const wire_limits& limits,
                                 std::chrono::milliseconds interval)
    : stream_(stream), limits_(limits), interval_(interval), thread_([this] { loop(); }) {}

wire_heartbeats::~wire_heartbeats() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void wire_heartbeats::begin(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    running_ = id;
    ++runs_;
  }
  changed_.notify_one();
}

// Waits for a heartbeat that is being sent.
void wire_heartbeats::end() {
  const std::lock_guard lock(mutex_);
  running_.reset();
}

void wire_heartbeats::check_peer() {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) throw wire_lost(lost_);
}

void wire_heartbeats::loop() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    changed_.wait(lock, [&] { return ended_ || (running_ && lost_.empty()); });
    const uint64_t run = runs_;
    const bool over =
        changed_.wait_for(lock, interval_, [&] { return ended_ || runs_ != run || !running_; });
    if (over || !running_) continue;
    try {
      send_frame(stream_, frame_kind::heartbeat, *running_, {}, limits_);
    } catch (const std::exception& problem) {
      lost_ = problem.what();
    }
  }
}

}  // namespace dflash

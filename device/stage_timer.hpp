// Times of named stages of what one thread does: marks, one after another, within scopes that may
// stand in scopes, three deep in all. Off, as it begins, everything costs one branch. Names must
// outlive the timer: string literals. Not thread safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dflash {

struct stage_span {
  const char* name = "";
  const char* inside = nullptr;      // the scope that it stands in; null: in none
  const char* outer = nullptr;       // the scope that this one stands in, if any
  int32_t group = -1;                // of layers, or one layer; -1: none
  bool whole = false;                // a scope, whose inner spans come before it
  int64_t begin_ns = 0, end_ns = 0;  // of the steady clock
};

// The clock of a device whose work runs behind the host's (CUDA: device/cuda/stage_clock.hpp).
// Nothing here blocks.
struct device_clock {
  std::function<void()> record;  // a moment behind all that the device has been given so far
  // When the oldest moment that is not read yet was, in ns of the steady clock; nothing: the device
  // has not come to it.
  std::function<std::optional<int64_t>()> read;
  // For the vendor's tools: scopes begin and end, marks pass, in the host's time.
  std::function<void(const char* name, int32_t group)> begin_range;
  std::function<void()> end_range;
  std::function<void(const char* name, int32_t group)> mark;
};

class stage_timer {
public:
  class scope {
  public:
    scope(stage_timer* timer, const char* name, int32_t group) : timer_(timer) {
      if (timer_ != nullptr) timer_->open(name, group);
    }
    ~scope() {
      if (timer_ != nullptr) timer_->close();
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

  private:
    stage_timer* timer_;  // null: off
  };

  void turn_on() { on_ = true; }
  bool is_on() const { return on_; }
  // Times are the device's from now on: before the first stage.
  void use(device_clock clock) { device_.emplace(std::move(clock)); }

  // The time since the last mark, scope's begin or end, or reset.
  void mark(const char* name, int32_t group = -1) {
    if (on_) add(name, group);
  }
  void reset() {
    if (on_) last_ = moment();
  }
  [[nodiscard]] scope within(const char* name, int32_t group = -1) {
    return {on_ ? this : nullptr, name, group};
  }

  // What has ended; on a device, only what that has come to the end of: the rest comes later.
  std::vector<stage_span> take() { return device_ ? take_passed() : std::exchange(spans_, {}); }

private:
  struct opened {
    const char* name;
    int32_t group;
    int64_t begin;
  };
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  // Now, or on a device the number of the moment that was recorded: what spans have in the place of
  // times until they are taken.
  int64_t moment() {
    if (!device_) return now();
    device_->record();
    return recorded_++;
  }
  void add(const char* name, int32_t group) {
    if (device_) device_->mark(name, group);
    const int64_t end = moment();
    spans_.push_back({name, scope_at(1), scope_at(2), group, false, last_, end});
    last_ = end;
  }
  void open(const char* name, int32_t group) {
    if (device_) device_->begin_range(name, group);
    last_ = moment();
    open_.push_back({name, group, last_});
  }
  void close() {
    const opened it = open_.back();
    open_.pop_back();
    last_ = moment();
    spans_.push_back({it.name, scope_at(1), scope_at(2), it.group, true, it.begin, last_});
    if (device_) device_->end_range();
  }
  std::vector<stage_span> take_passed() {
    while (const auto ns = device_->read()) passed_ns_.push_back(*ns);
    const auto end = first_passed_ + static_cast<int64_t>(passed_ns_.size());
    const auto time_of = [&](int64_t moment) {
      return passed_ns_.at(static_cast<size_t>(moment - first_passed_));
    };
    // Spans stand in the order of their ends.
    const auto rest = std::find_if(
        spans_.begin(), spans_.end(), [&](const stage_span& s) { return s.end_ns >= end; });
    std::vector<stage_span> taken(spans_.begin(), rest);
    spans_.erase(spans_.begin(), rest);
    for (stage_span& s : taken) {
      s.begin_ns = time_of(s.begin_ns);
      s.end_ns = time_of(s.end_ns);
    }
    int64_t needed = std::min(last_, end);
    for (const stage_span& s : spans_) needed = std::min(needed, s.begin_ns);
    for (const opened& o : open_) needed = std::min(needed, o.begin);
    passed_ns_.erase(passed_ns_.begin(), passed_ns_.begin() + (needed - first_passed_));
    first_passed_ = needed;
    return taken;
  }
  // 1: the innermost that is open.
  const char* scope_at(size_t depth) const {
    return open_.size() < depth ? nullptr : open_[open_.size() - depth].name;
  }

  bool on_ = false;
  std::optional<device_clock> device_;
  int64_t recorded_ = 0;           // moments of the device
  int64_t first_passed_ = 0;       // number of the first of
  std::deque<int64_t> passed_ns_;  // times of moments that some span still needs
  int64_t last_ = 0;
  std::vector<opened> open_;
  std::vector<stage_span> spans_;
};

/// Sums of the marks by name, for programs that want no more.
inline std::map<std::string, double> mark_seconds(const std::vector<stage_span>& spans) {
  std::map<std::string, double> seconds;
  for (const stage_span& s : spans)
    if (!s.whole) seconds[s.name] += static_cast<double>(s.end_ns - s.begin_ns) * 1e-9;
  return seconds;
}

}  // namespace dflash

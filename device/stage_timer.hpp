// Times of named stages of what one thread does: marks, one after another, within scopes that may
// stand in scopes, three deep in all. Off, as it begins, everything costs one branch. Names must
// outlive the timer: string literals. Not thread safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
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

  // The time since the last mark, scope's begin or end, or reset.
  void mark(const char* name, int32_t group = -1) {
    if (on_) add(name, group);
  }
  void reset() {
    if (on_) last_ = now();
  }
  [[nodiscard]] scope within(const char* name, int32_t group = -1) {
    return {on_ ? this : nullptr, name, group};
  }

  std::vector<stage_span> take() { return std::exchange(spans_, {}); }

private:
  struct opened {
    const char* name;
    int32_t group;
    int64_t begin_ns;
  };
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void add(const char* name, int32_t group) {
    const int64_t end = now();
    spans_.push_back({name, scope_at(1), scope_at(2), group, false, last_, end});
    last_ = end;
  }
  void open(const char* name, int32_t group) {
    last_ = now();
    open_.push_back({name, group, last_});
  }
  void close() {
    const opened it = open_.back();
    open_.pop_back();
    last_ = now();
    spans_.push_back({it.name, scope_at(1), scope_at(2), it.group, true, it.begin_ns, last_});
  }
  // 1: the innermost that is open.
  const char* scope_at(size_t depth) const {
    return open_.size() < depth ? nullptr : open_[open_.size() - depth].name;
  }

  bool on_ = false;
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

// Seconds per named stage of a computation on one thread. Not thread safe.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

namespace dflash {

class stage_timer {
public:
  // Adds the time since the last call (or reset) to `name`.
  void mark(const char* name) {
    const auto now = clock::now();
    seconds_[name] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  void reset() { last_ = clock::now(); }
  std::map<std::string, double> take() { return std::exchange(seconds_, {}); }

private:
  using clock = std::chrono::steady_clock;
  clock::time_point last_ = clock::now();
  std::map<std::string, double> seconds_;
};

}  // namespace dflash

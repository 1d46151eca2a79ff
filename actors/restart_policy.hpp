// Whether and when a group of actors that failed starts again. Plain struct.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace dflash {

struct restart_options {
  uint32_t max_failures = 3;  // in a row without a unit of work done: retired
  std::chrono::milliseconds first_delay{100};
  std::chrono::milliseconds longest_delay{10000};
  // Nobody is retired before so much time has passed since the first failure in a row.
  std::chrono::milliseconds patience{0};
};

class restart_policy {
public:
  explicit restart_policy(restart_options options = {}) : options_(options) {}

  // A failure; `completed`: units of work that the group has done over all its lives. How long to
  // wait before the next life, doubled with each failure in a row; nothing: retire it.
  std::optional<std::chrono::milliseconds> failed(
      uint64_t completed,
      std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());
  uint32_t failures_in_a_row() const { return in_a_row_; }

private:
  restart_options options_;
  uint64_t completed_ = 0;  // at the last failure
  uint32_t in_a_row_ = 0;
  std::chrono::steady_clock::time_point first_;  // of those in a row
};

}  // namespace dflash

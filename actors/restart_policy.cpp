#include "actors/restart_policy.hpp"

#include <algorithm>

namespace dflash {

std::optional<std::chrono::milliseconds> restart_policy::failed(
    uint64_t completed, std::chrono::steady_clock::time_point now) {
  if (completed > completed_) in_a_row_ = 0;
  completed_ = completed;
  if (in_a_row_ == 0) first_ = now;
  if (++in_a_row_ >= options_.max_failures && now - first_ >= options_.patience)
    return std::nullopt;
  const auto doublings = std::min(in_a_row_ - 1, 20U);
  return std::min(options_.longest_delay, options_.first_delay * (int64_t{1} << doublings));
}

}  // namespace dflash

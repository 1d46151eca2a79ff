#include "data/step_plan.hpp"

#include <algorithm>

#include "config/error.hpp"

namespace dflash {

step_plan::step_plan(
    int64_t rows, int64_t epochs, int64_t drafters, int64_t accumulation, int64_t max_steps) {
  DFLASH_CHECK(rows > 0 && epochs > 0 && drafters > 0 && accumulation > 0 && max_steps >= 0,
               "a plan has rows, epochs, drafters and accumulation",
               rows,
               epochs,
               drafters,
               accumulation,
               max_steps);
  rows_ = static_cast<uint64_t>(rows);
  group_ = static_cast<uint64_t>(drafters) * static_cast<uint64_t>(accumulation);
  steps_per_epoch_ = (rows_ + group_ - 1) / group_;
  total_steps_ = max_steps > 0 ? static_cast<uint64_t>(max_steps)
                               : static_cast<uint64_t>(epochs) * steps_per_epoch_;
}

uint64_t step_plan::total_batches() const {
  return step(total_steps_ - 1).last_k;
}

step_range step_plan::step(uint64_t s) const {
  DFLASH_CHECK(s < total_steps_, "the plan has that step", s, total_steps_);
  const uint64_t epoch = s / steps_per_epoch_;
  const uint64_t first = epoch * rows_ + s % steps_per_epoch_ * group_;
  return {s, first, std::min(first + group_, (epoch + 1) * rows_), epoch};
}

uint64_t step_plan::step_of(uint64_t k) const {
  return k / rows_ * steps_per_epoch_ + k % rows_ / group_;
}

}  // namespace dflash

#include "model/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "config/error.hpp"

namespace dflash {

double schedule_factor(const optim_section& optim, uint64_t step, uint64_t total) {
  DFLASH_CHECK(total > 0, "a run has steps");
  check_schedule(optim, total);
  step = std::min(step, total - 1);
  const uint64_t warm = optim.warmup.of(total);
  if (step < warm) return static_cast<double>(step + 1) / static_cast<double>(warm);
  if (optim.schedule == "constant") return 1.0;
  // The falling part starts after warm-up (cosine, linear) or `decay` steps before the end (wsd).
  uint64_t start = warm;
  if (optim.schedule == "wsd")
    start = std::max(warm, total - std::min(total, optim.decay.of(total)));
  if (step < start) return 1.0;
  const double progress =
      static_cast<double>(step - start + 1) / static_cast<double>(total - start);
  const double low = optim.min_lr_share;
  if (optim.schedule == "linear") return low + (1.0 - low) * (1.0 - progress);
  return low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double learning_rate(const optim_section& optim, uint64_t step, uint64_t total) {
  return optim.lr * schedule_factor(optim, step, total);
}

}  // namespace dflash

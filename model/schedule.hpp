// Learning rate by step: a pure function, so a resumed run follows the same curve to the bit.
#pragma once

#include <cstdint>

#include "config/run_config.hpp"

namespace dflash {

// Steps of warm-up of a run of `total` steps. optim.warmup below 1 is a share (rounded to the nearest step),
// else a number of steps; more than `total` is an error naming both.
uint64_t warmup_steps(const optim_section& optim, uint64_t total);

// Factor in (0, 1] on the peak rate at step 0 <= s < total. Warm-up: (s + 1) / w. cosine: down to
// min_lr_share at the last step; wsd: 1, then cosine to min_lr_share over the last `decay` share; constant: 1.
// s >= total gives the value of the last step.
double schedule_factor(const optim_section& optim, uint64_t step, uint64_t total);

// optim.lr x schedule_factor.
double learning_rate(const optim_section& optim, uint64_t step, uint64_t total);

}  // namespace dflash

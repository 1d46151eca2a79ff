// Learning rate by step: a pure function, so a resumed run follows the same curve to the bit.
#pragma once

#include <cstdint>

#include "config/run_config.hpp"

namespace dflash {

// Factor in (0, 1] on the peak rate at step 0 <= s < total. Warm-up over w steps: (s + 1) / w.
// cosine, linear: down to min_lr_share at the last step by that curve; wsd: 1, then by the cosine
// to min_lr_share over the last `decay` steps; constant: 1. s >= total gives the value of the last
// step. A run of other total steps follows its own curve from the step number. Throws dflash::error
// where warm-up and decay do not fit into the run (check_schedule).
double schedule_factor(const optim_section& optim, uint64_t step, uint64_t total);

// optim.lr x schedule_factor.
double learning_rate(const optim_section& optim, uint64_t step, uint64_t total);

}  // namespace dflash

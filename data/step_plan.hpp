// Which batches make up which optimizer step; known in full when the run starts.
#pragma once

#include <cstdint>

namespace dflash {

struct step_range {
  uint64_t step = 0;
  uint64_t first_k = 0, last_k = 0;  // last_k exclusive
  uint64_t epoch = 0;
};

/// A step is drafters × accumulation consecutive batches. Steps do not cross epochs: the last group
/// of an epoch is a step over what there is (10 rows by 4 → 3 steps), to be normalised by its own
/// weights. max_steps > 0 sets the number of steps alone: it cuts the epochs short or repeats them.
/// Pure arithmetic; batch k has row k % rows of epoch k / rows and goes to drafter k % drafters.
class step_plan {
public:
  /// All ≥ 1 but max_steps ≥ 0; rows from data, the rest from a validated configuration.
  step_plan(
      int64_t rows, int64_t epochs, int64_t drafters, int64_t accumulation, int64_t max_steps);

  uint64_t total_steps() const { return total_steps_; }
  uint64_t total_batches() const;
  uint64_t steps_per_epoch() const { return steps_per_epoch_; }
  /// s < total_steps().
  step_range step(uint64_t s) const;
  /// The step that batch k belongs to, whether or not the plan reaches it.
  uint64_t step_of(uint64_t k) const;

private:
  uint64_t rows_, group_, steps_per_epoch_, total_steps_;
};

}  // namespace dflash

// How one replica of the drafter gets the state of another one, or goes back to the start of the
// run: all that decides how training goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/drafter_step.hpp"

namespace dflash {

// Masters, their moving average and moments by name, in the order of a checkpoint: views of the
// memory of the trainer that they came from, right until its next update.
struct replica_state {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  uint64_t updates = 0;  // of the optimizer, skipped steps not counted
};

replica_state state_of(drafter_trainer& trainer);

// Copies; what `to` had accumulated of its open step is forgotten. Throws error naming a tensor
// that only one of them has, or that has another shape.
void copy_state(const replica_state& from, drafter_trainer& to);

// As it was built from these masters: no moments, no updates, the average as the masters.
void restart_from(const drafter_weights& masters, drafter_trainer& trainer);

}  // namespace dflash

// A copy of all that decides how a trainer goes on, taken between two steps so that it can be
// written while training goes on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/drafter.hpp"
#include "model/drafter_step.hpp"

namespace dflash {

struct trainer_snapshot {
  // In the order of the file: "master.NAME", "ema.NAME", moments by name. fp32, CPU, contiguous.
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  uint64_t updates = 0;  // of the optimizer
  drafter_config config;
  drafter_weights exported;  // views of `tensors`: the moving average if there is one, else masters
  at::Tensor head;         // [Vd, H] of the target, never written; undefined: the whole vocabulary
  uint64_t bytes() const;  // of `tensors`
};

// Every tensor that decides how training goes on, in the order of a snapshot. They share the
// trainer's memory.
std::vector<std::pair<std::string, at::Tensor>> trainer_tensors(drafter_trainer& trainer);

// Buffers for a snapshot of a trainer of this shape; masters and average are views of one flat
// tensor each. head: as above, looked at only with a draft vocabulary. moments: names and shapes,
// in order.
trainer_snapshot blank_snapshot(
    const drafter_config& config,
    const at::Tensor& head,
    bool average,
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& moments);

// Copies into the buffers of `into`, which are made at the first call and must be of the same
// trainer later. By the trainer's own thread, between two steps.
void take_snapshot(drafter_trainer& trainer, trainer_snapshot& into);

// Bytes that a snapshot of this trainer takes.
uint64_t snapshot_bytes(drafter_trainer& trainer);

// The one snapshot that there is at a time: its buffers are used again unless somebody still holds
// them.
class snapshot_buffer {
public:
  std::shared_ptr<const trainer_snapshot> take(drafter_trainer& trainer);

private:
  std::shared_ptr<trainer_snapshot> kept_;
};

}  // namespace dflash

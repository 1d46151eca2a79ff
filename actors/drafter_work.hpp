// What a drafter lane computes, as functions: a trainer's, or those of a simulated lane. Called by
// the lane's own thread only.
#pragma once

#include <functional>
#include <memory>

#include "messages/messages.hpp"
#include "model/drafter_step.hpp"

namespace dflash {

struct drafter_work {
  // Forward, loss and backward of one batch; its gradient is added to those of the open step.
  std::function<step_sums(const drafter_input&, bool measured)> accumulate;
  // Of the open step: one flat [P] fp32, unnormalised; 0 where nothing was accumulated.
  std::function<const at::Tensor&()> gradient;
  // Updates the weights and opens the next step.
  std::function<update_report(const at::Tensor& reduced, double weight_sum, uint64_t step)> update;
  // Writes a checkpoint; blocks; throws where the disk refuses. Asked of rank 0 only.
  std::function<void(const save_request&)> save;
  // Of the stages inside these functions; null: none are known.
  std::shared_ptr<stage_timer> stages;
};

using checkpoint_writer = std::function<void(const save_request&, drafter_trainer&)>;

// Of rank 0 with `save`, of the others without.
drafter_work work_of(std::shared_ptr<drafter_trainer> trainer, checkpoint_writer save = {});

}  // namespace dflash

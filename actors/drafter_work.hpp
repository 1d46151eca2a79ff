// What a drafter lane computes, as functions: a trainer's, or those of a simulated lane. Called by
// the lane's own thread only.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "device/collective.hpp"
#include "messages/messages.hpp"
#include "model/drafter_step.hpp"
#include "model/replica_state.hpp"
#include "model/trainer_snapshot.hpp"

namespace dflash {

struct drafter_work {
  // Forward, loss and backward of one batch; its gradient is added to those of the open step.
  std::function<step_sums(const drafter_input&, bool measured, const accumulate_watch&)> accumulate;
  // Of the open step: one flat [P] fp32, unnormalised; 0 where nothing was accumulated. Of a lane
  // of another host: waits for the backward pass there, while what is done of it comes over.
  std::function<const at::Tensor&()> gradient;
  // Of several drafters, in the order of ranks; simulated lanes only take their time.
  std::function<void(std::span<const at::Tensor>, at::Tensor&)> sum = sum_in_rank_order;
  // Updates the weights and opens the next step; `skip`: leaves weights and moments as they are.
  std::function<update_report(
      const at::Tensor& reduced, double weight_sum, uint64_t step, bool skip)>
      update;
  // Copies what a checkpoint needs, and gives what writes it, for another thread: blocks, throws
  // where the disk refuses. Asked of rank 0 only.
  std::function<std::function<void()>(const save_request&)> snapshot;
  // All that decides later bits, as views of its own memory.
  std::function<replica_state()> state;
  // Takes another replica's state over; forgets what was accumulated.
  std::function<void(const replica_state&)> load_state;
  // Goes back to the newest good checkpoint, or to the initial state if there is none; returns its
  // committed steps. Blocks; throws where there is nothing to go back to.
  std::function<uint64_t()> restore;
  // Of the stages inside these functions; null: none are known.
  std::shared_ptr<stage_timer> stages;
};

using checkpoint_writer = std::function<void(const save_request&, const trainer_snapshot&)>;
// As drafter_work::restore.
using checkpoint_restorer = std::function<uint64_t(drafter_trainer&)>;

// Of rank 0 with `write`, of the others without.
drafter_work work_of(std::shared_ptr<drafter_trainer> trainer,
                     checkpoint_restorer restore,
                     checkpoint_writer write = {});

}  // namespace dflash

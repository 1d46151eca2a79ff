// Loss and metrics of a stored drafter on batches, without what training needs beside its weights.
// The same figures as a trainer with these weights gives. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/run_config.hpp"
#include "model/drafter_pass.hpp"
#include "model/drafter_step.hpp"
#include "model/head_loss.hpp"

namespace dflash {

class drafter_scorer {
public:
  // Copies the weights into the target's compute dtype; shares embedding and head with the target.
  drafter_scorer(drafter_config config,
                 const drafter_weights& weights,
                 const loss_section& loss,
                 const std::shared_ptr<const target>& of);

  drafter_scorer(const drafter_scorer&) = delete;
  drafter_scorer& operator=(const drafter_scorer&) = delete;

  step_sums score(const drafter_input& input);

private:
  drafter_config config_;
  slot_weights weighting_;
  frozen_parts frozen_;
  std::vector<int32_t> rows_;  // [V] row in the draft vocabulary; empty: the whole vocabulary
  head_loss head_;
  drafter_weights compute_;  // matrices in the compute dtype, norms fp32
  drafter_body body_;        // refers to config_ and compute_
  stage_timer timer_;
};

}  // namespace dflash

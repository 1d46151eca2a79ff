// Training of one drafter replica: forward, loss and backward by hand (no autograd), and the
// update. One owner, one thread at a time; that thread's ATen threads do the work. For a fixed
// number of them results are the same bits from run to run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.hpp"
#include "data/batches.hpp"
#include "device/packed_linear.hpp"
#include "device/stage_timer.hpp"
#include "model/drafter.hpp"
#include "model/loss.hpp"
#include "model/optimizer.hpp"
#include "model/target.hpp"

namespace dflash {

// What the drafter reads of one batch. The tensors are only read; they may be dropped when
// accumulate returns.
struct drafter_input {
  std::vector<at::Tensor> taps;  // nT x [T, Ht], compute dtype
  // [T, Ht] before the final norm; undefined unless the loss reads the teacher or the drafter has a
  // draft vocabulary
  at::Tensor last_hidden;
  const batch* tokens = nullptr;  // not owned
};

// The frozen tensors that the drafter borrows from its target (shared, never written).
struct frozen_parts {
  at::Tensor embedding;   // [V, H] compute dtype
  packed_linear head;     // [V, H] compute dtype, plain form kept
  at::Tensor final_norm;  // [H] fp32
  double rms_eps = 0;
  double logit_cap = 0;  // of the target's logits, so of the teacher's; 0: none
};
frozen_parts frozen_parts_of(const target& frozen);

// Hears what is there while accumulate still computes; called in its thread. Each may be empty.
struct accumulate_watch {
  // After forward and loss: what accumulate is going to return.
  std::function<void(const step_sums&)> summed;
  // The elements of the flat gradient [P] from this one on are what they will be when accumulate
  // returns; they may be read meanwhile. Falls from layer to layer, the last one first. Not called
  // where nothing is supervised.
  std::function<void(const at::Tensor& gradient, int64_t from)> final_from;
};

class drafter_trainer {
public:
  // masters: fp32, any layout; copied into one flat buffer. total_steps: of the run, for the
  // schedule.
  drafter_trainer(drafter_config config,
                  loss_section loss,
                  optim_section optim,
                  const drafter_weights& masters,
                  frozen_parts frozen,
                  compute_dtype dtype,
                  uint64_t total_steps);
  drafter_trainer(drafter_config config,
                  loss_section loss,
                  optim_section optim,
                  const drafter_weights& masters,
                  std::shared_ptr<const target> frozen,
                  compute_dtype dtype,
                  uint64_t total_steps);
  ~drafter_trainer();
  drafter_trainer(const drafter_trainer&) = delete;
  drafter_trainer& operator=(const drafter_trainer&) = delete;

  // Adds the unnormalised gradient of one batch to gradient(). want_metrics: hits, top-8 and block
  // counts too (nearly free); loss sums and supervised counts are always given.
  step_sums accumulate(const drafter_input& input,
                       bool want_metrics = true,
                       const accumulate_watch& watch = {});
  // Loss and metrics only.
  step_sums evaluate(const drafter_input& input);

  // [P] fp32, in the order of named_tensors: unnormalised sums since the last clear_gradient.
  const at::Tensor& gradient();
  void clear_gradient();

  // One update of all weights from the gradient summed over drafters (this one's own: gradient()),
  // which is not modified; clears gradient(). weight_sum: S over drafters and micro-steps. Skips
  // (moments and weights stay, the schedule goes on) where S is 0 or the norm is not finite, or
  // where it is told to.
  update_report apply(const at::Tensor& reduced_gradient,
                      double weight_sum,
                      uint64_t step,
                      bool skip = false);

  const drafter_config& config() const;
  const at::Tensor& head() const;          // [Vd, H] compute dtype: the target's, never written
  const drafter_weights& masters() const;  // fp32, views of flat_masters()
  // What forward passes use: matrices in the compute dtype, norms fp32.
  const drafter_weights& compute() const;
  const at::Tensor& flat_masters() const;  // [P] fp32
  // Moving average of the masters (optim.ema), fp32; null: there is none. Starts as the masters; a
  // skipped step leaves it alone.
  const drafter_weights* average() const;
  // What a checkpoint exports: the average if there is one, else the masters.
  const drafter_weights& exported() const;
  optimizer& state();  // moments and update count, for checkpoints
  // After masters and moments were filled from a checkpoint.
  void refresh_compute();

  // Times of the stages ("anchors", "forward.attention", ...); off until it is turned on.
  stage_timer& stages();

  // Values of a forward pass, for tests: "ctx_feature" [T, H], "layer.i" [A B, H] (the last layer:
  // slots 1..B-1 only, [A (B-1), H]), "hidden" [A (B-1), H] after the final norm, "logits" [A
  // (B-1), V].
  std::map<std::string, at::Tensor> inspect(const drafter_input& input);

private:
  struct implementation;
  std::unique_ptr<implementation> impl_;
};

}  // namespace dflash

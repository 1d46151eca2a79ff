// AdamW, and Muon on matrices with AdamW on the rest, over fp32 masters. One update = divide the
// summed gradient by the summed weight, clip by the global norm, update. Not thread safe; runs on
// the calling thread's ATen threads and gives the same bits for a fixed number of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.hpp"

namespace dflash {

namespace kernel {
class square_sum;
}

struct update_report {
  double grad_norm = 0;    // of the divided gradient, before clipping
  double lr = 0;           // AdamW's rate of this step
  double update_norm = 0;  // of the change of the weights
  // On request, for a weight sum of 0 or a norm that is not finite: nothing but the schedule moved.
  bool skipped = false;
};

class optimizer {
public:
  struct parameter {
    std::string name;
    at::Tensor weight;   // fp32 master, contiguous, updated in place
    at::Tensor compute;  // copy in the compute dtype, refreshed by each update; undefined: none
  };

  // total_steps: of the whole run, for the schedule. bf16_newton_schulz: Muon's iterations in bf16.
  optimizer(optim_section options,
            std::vector<parameter> parameters,
            uint64_t total_steps,
            bool bf16_newton_schulz);

  // gradients: per parameter, fp32, unnormalised sums over the whole step; not modified.
  // weight_sum: S of dflash.md 4.7 over the whole step. step: position in the schedule, from 0.
  // skip: change nothing.
  update_report apply(const std::vector<at::Tensor>& gradients,
                      double weight_sum,
                      uint64_t step,
                      bool skip = false);

  // Moments by name ("exp_avg.NAME", "exp_avg_sq.NAME", "momentum.NAME"), to be saved and filled in
  // place.
  std::vector<std::pair<std::string, at::Tensor>> state() const;
  // Updates done, skipped ones not counted: AdamW's bias correction.
  uint64_t updates() const { return updates_; }
  void set_updates(uint64_t updates) { updates_ = updates; }
  // Copies masters to compute copies, after a restore.
  void refresh_compute();

private:
  struct slot {
    parameter p;
    bool muon = false;
    bool decay = false;
    at::Tensor first, second;  // exp_avg or momentum; exp_avg_sq (AdamW)
  };
  // Add the squares of what they change.
  void update_adamw(
      slot& s, const at::Tensor& gradient, double scale, double lr, kernel::square_sum& moved);
  void update_muon(
      slot& s, const at::Tensor& gradient, double scale, double lr, kernel::square_sum& moved);

  optim_section options_;
  std::vector<slot> slots_;  // [parameter]
  uint64_t total_steps_;
  uint64_t updates_ = 0;
  bool bf16_newton_schulz_;
};

// Orthogonalised matrix of Muon: 5 Newton-Schulz steps with torch.optim.Muon's coefficients. [r, c]
// -> [r, c].
at::Tensor newton_schulz(const at::Tensor& matrix, bool bf16);

}  // namespace dflash

// One AdamW update in one pass over memory, and the sum of squares that clipping needs. Fixed
// chunks, partial sums added in order: bits do not depend on the number of threads. Blocking.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dflash::kernel {

struct adamw_options {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0;  // decoupled: weight -= lr x weight_decay x weight
  double gradient_scale = 1;
  uint64_t updates = 1;  // this one included: bias correction
};

// A sum over many tensors, in double. What a device adds stays there until somebody asks: one wait
// of the host for all.
class square_sum {
public:
  void add(double value) { host_ += value; }
  void add(const at::Tensor& value);  // 0-dim fp64
  double value() const;

private:
  double host_ = 0;
  at::Tensor device_;
};

// All fp32, contiguous, of one size; gradient is only read. compute: undefined, or a copy of weight
// in fp32 or bf16 to refresh. Adds the squares of the weight's change.
void adamw_update(at::Tensor& weight,
                  at::Tensor& exp_avg,
                  at::Tensor& exp_avg_sq,
                  const at::Tensor& gradient,
                  at::Tensor& compute,
                  const adamw_options& options,
                  square_sum& moved);
void adamw_update_reference(at::Tensor& weight,
                            at::Tensor& exp_avg,
                            at::Tensor& exp_avg_sq,
                            const at::Tensor& gradient,
                            at::Tensor& compute,
                            const adamw_options& options,
                            square_sum& moved);

// Adds the squares of a contiguous fp32 tensor; fp32 in lanes, double between chunks.
void add_squares(const at::Tensor& t, square_sum& into);
void add_squares_reference(const at::Tensor& t, square_sum& into);

}  // namespace dflash::kernel

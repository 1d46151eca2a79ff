// Cross-entropy over rows of logits on the device: log-sum-exp, label, argmax, rank of the label,
// and the gradient written over the logits; one block a row, two passes. CPU twin:
// device/kernels/loss_rows.hpp (ce).
#pragma once

#include <c10/util/BFloat16.h>

#include <cmath>
#include <cstdint>

#include "device/cuda/launch.hpp"

namespace dflash::cuda {

// What one thread, or one row, knows of the logits: an online softmax (arXiv 1805.02867, algorithm
// 3).
struct row_part {
  float top = -INFINITY;
  float sum = 0;      // of exp(z - top)
  int32_t best = -1;  // lowest id of `top`
  int32_t beats = 0;  // logits that beat the label's (ties: lower ids beat it)
};

DFLASH_HOST_DEVICE inline row_part join(const row_part& a, const row_part& b) {
  if (b.best < 0) return {a.top, a.sum, a.best, a.beats + b.beats};
  if (a.best < 0) return {b.top, b.sum, b.best, a.beats + b.beats};
  const bool first = a.top > b.top || (a.top == b.top && a.best < b.best);
  const row_part& high = first ? a : b;
  const row_part& low = first ? b : a;
  return {
      high.top, high.sum + low.sum * std::exp(low.top - high.top), high.best, a.beats + b.beats};
}

// The logits thread, thread + threads, ... of a row of n.
template <class T>
DFLASH_HOST_DEVICE inline row_part scan_row(
    const T* z, int64_t n, int32_t label, uint32_t thread, uint32_t threads) {
  const float level = static_cast<float>(z[label]);
  row_part part;
  for (int64_t i = thread; i < n; i += threads) {
    const float value = static_cast<float>(z[i]);
    part.beats += value > level || (value == level && i < label);
    if (part.best < 0 || value > part.top) {
      part.sum = part.best < 0 ? 1.0f : part.sum * std::exp(part.top - value) + 1.0f;
      part.top = value;
      part.best = static_cast<int32_t>(i);
    } else {
      part.sum += std::exp(value - part.top);
    }
  }
  return part;
}

// weight x (softmax - one-hot) over the logits; zeros where the weight is 0.
template <class T>
DFLASH_HOST_DEVICE inline void write_row_gradient(T* z,
                                                  int64_t n,
                                                  int32_t label,
                                                  float weight,
                                                  float log_sum,
                                                  uint32_t thread,
                                                  uint32_t threads) {
  for (int64_t i = thread; i < n; i += threads) {
    const float q = std::exp(static_cast<float>(z[i]) - log_sum);
    z[i] = static_cast<T>(weight == 0.0f ? 0.0f : weight * (q - (i == label ? 1.0f : 0.0f)));
  }
}

struct loss_row_result {
  float ce;      // log-sum-exp - z[label]; 0 where the weight is 0
  int32_t best;  // argmax, lowest id on ties
  int32_t rank;  // logits that beat the label's; -1 where the weight is 0
};

DFLASH_HOST_DEVICE inline float log_sum_exp(const row_part& row) {
  return row.top + std::log(row.sum);
}
DFLASH_HOST_DEVICE inline loss_row_result result_of(const row_part& row,
                                                    float label_logit,
                                                    float weight) {
  return {weight == 0.0f ? 0.0f : log_sum_exp(row) - label_logit,
          row.best,
          weight == 0.0f ? -1 : row.beats};
}

// logits [rows, n] on the device, overwritten by the gradient; labels, weights, results: [rows] on
// the device. Does not block. Throws std::runtime_error when the launch fails.
void loss_rows(float* logits,
               int64_t rows,
               int64_t n,
               const int32_t* labels,
               const float* weights,
               loss_row_result* results,
               stream_handle);
void loss_rows(c10::BFloat16* logits,
               int64_t rows,
               int64_t n,
               const int32_t* labels,
               const float* weights,
               loss_row_result* results,
               stream_handle);

}  // namespace dflash::cuda

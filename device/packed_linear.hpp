// A frozen weight that is multiplied often: packed once for the CPU's product in fp32, or in bf16
// where the CPU has one (oneDNN through ATen's dispatcher); plain matrix product everywhere else.
// (Unpacked, an fp32 product of few rows spends most of its time copying the weight: decoding takes
// twice as long.) It must not be used for weights that training changes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dflash {

// Whether the plain form [N, K] stays beside the packed one. `drop` halves the memory and is right
// for weights that nobody gathers from; `keep` is needed for a tied embedding.
enum class plain_weight { keep, drop };

class packed_linear {
public:
  packed_linear() = default;

  // weight: [N, K] bf16 or fp32, any device; shared, not copied, where no packing takes place.
  explicit packed_linear(at::Tensor weight, plain_weight plain = plain_weight::keep);

  // x [M, K] of the weight's dtype and device, contiguous rows -> [M, N], a new tensor. Const and
  // stateless: several threads may call it at once, each with its own at::set_num_threads.
  at::Tensor operator()(const at::Tensor& x) const;

  // The plain form [N, K]. A broken invariant (ends the process) if it was dropped.
  const at::Tensor& weight() const;

  bool defined() const { return out_features_ > 0; }
  bool is_packed() const { return packed_.defined(); }
  int64_t in_features() const { return in_features_; }    // K
  int64_t out_features() const { return out_features_; }  // N
  int64_t bytes() const;                                  // of plain and packed form together

private:
  at::Tensor plain_;   // [N, K], undefined if packed and dropped
  at::Tensor packed_;  // opaque oneDNN layout, undefined if not packed
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
};

// True if this CPU multiplies bf16 pairs in hardware (avx512_bf16 or amx_bf16) and ATen uses it.
bool cpu_has_bf16_product();

}  // namespace dflash

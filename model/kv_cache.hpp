// Keys and values of the sequences that a target is decoding, one slot a sequence. Owned by one
// thread; target::forward appends to it, crop takes rejected tokens back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/compute_dtype.hpp"
#include "model/target_config.hpp"

namespace dflash {

class kv_cache {
public:
  // Room for `slots` sequences of at most `capacity` tokens each, allocated at once, on the CPU.
  kv_cache(const target_config& config, compute_dtype dtype, int64_t slots, int64_t capacity);

  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }  // tokens a slot
  int64_t length(int64_t slot) const;             // tokens held
  void crop(int64_t slot, int64_t length);        // keeps the first `length` tokens
  void clear(int64_t slot) { crop(slot, 0); }
  int64_t bytes() const;

private:
  friend class target;
  int64_t capacity_ = 0;
  std::vector<int64_t> lengths_;  // [slot]
  // Per layer, in the layout of kernel::cached_attention (device/kernels/target_attention.hpp).
  std::vector<at::Tensor> keys_;    // [layer] -> [slots, kv_heads, blocks, hd · 16]
  std::vector<at::Tensor> values_;  // [layer] -> the same
};

}  // namespace dflash

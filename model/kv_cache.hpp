// What a target remembers of the sequences that it is decoding, one slot a sequence: keys and
// values of attention layers, state and inputs of linear ones. Owned by one thread; target::forward
// appends to it, crop takes rejected tokens back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/compute_dtype.hpp"
#include "model/target_config.hpp"

namespace dflash {

class kv_cache {
public:
  // Room for `slots` sequences of at most `capacity` tokens each, allocated at once, on the
  // target's device (target::device()). rollback: tokens of the last chunk that crop can take back
  // where the target has linear layers; their state is that of the tokens before, and what follows
  // is run through it again.
  kv_cache(const target_config& config,
           compute_dtype dtype,
           int64_t slots,
           int64_t capacity,
           int64_t rollback = 64,
           at::Device device = at::kCPU);

  at::Device device() const { return device_; }
  int64_t slots() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }  // tokens a slot
  int64_t length(int64_t slot) const;             // tokens held
  // Keeps the first `length` tokens. A length before those that can be taken back, other than 0, is
  // a broken invariant.
  void crop(int64_t slot, int64_t length);
  void clear(int64_t slot) { crop(slot, 0); }
  int64_t bytes() const;

private:
  friend class target;
  // Of one linear layer, all slots.
  struct linear_memory {
    at::Tensor state;   // [slots, hv, dk, dv] fp32, after the settled tokens
    at::Tensor inputs;  // [slots, K - 1 + rollback, channels]: of the convolution, for the last K -
                        // 1 settled tokens and all later ones
    at::Tensor gates;   // [slots, rollback, 2 hv] fp32, of the later ones
  };
  void append(int64_t slot, int64_t tokens);

  at::Device device_;
  int64_t capacity_ = 0;
  int64_t rollback_ = 0;
  bool hybrid_ = false;
  std::vector<int64_t> lengths_;  // [slot]
  std::vector<int64_t> settled_;  // [slot] tokens that the states of linear layers hold
  // Per layer, on the CPU in the layout of kernel::attend (device/kernels/target_attention.hpp), on
  // other devices [slots, capacity, kv_heads, hd]; undefined for linear layers.
  std::vector<at::Tensor> keys_;       // [layer] -> [slots, kv_heads, blocks, hd · 16]
  std::vector<at::Tensor> values_;     // [layer] -> the same
  std::vector<linear_memory> linear_;  // [layer]; undefined tensors for attention layers
};

}  // namespace dflash

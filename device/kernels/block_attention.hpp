// Attention of the drafter (dflash.md 2.3): queries are the slots of A blocks; keys are an interval
// of context tokens before the block's anchor, and the block's own slots. Work and memory grow with
// the visible keys; no mask and no [A B, T + A B] matrix exists. fp32 scores, softmax and
// accumulation. Blocking; spread over the caller's ATen threads in a partition that depends on
// their number alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dflash::kernel {

struct attention_layout {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t block_size = 0;  // B keys per block
  int64_t first_slot = 0;  // queries are slots first_slot .. B-1 (the last layer needs no slot 0)
  std::vector<int32_t> begin;  // [A] first context token of the block's document
  std::vector<int32_t>
      anchor;          // [A] end of the context (exclusive); = begin for a block without context
  int64_t window = 0;  // W of a sliding layer, 0: full. Slot k sees t >= anchor + k - (W - 1)
  // In the block: slot k sees k' <= k. A non-causal sliding layer also needs |k - k'| < W.
  bool causal = false;
  at::Tensor spans =
      {};  // [2, A] int32, begin and anchor where the tensors are; on the CPU not used

  int64_t blocks() const { return static_cast<int64_t>(anchor.size()); }
  int64_t queries() const { return block_size - first_slot; }  // per block
  // First context token that slot k of block a sees.
  int64_t first_key(int64_t a, int64_t k) const {
    const int64_t low = begin[static_cast<size_t>(a)];
    if (window == 0) return low;
    const int64_t bound = anchor[static_cast<size_t>(a)] + k - (window - 1);
    return bound > low ? bound : low;
  }
  bool sees_slot(int64_t k, int64_t other) const {
    if (causal && other > k) return false;
    return window == 0 || (k - other < window && other - k < window);
  }
};

// Undefined on the CPU.
at::Tensor spans_on(const attention_layout& layout, const at::Device& device);

// T is fp32 or bf16, one for all. Last dimension contiguous; rows may have any stride.
struct attention_input {
  at::Tensor q;                     // [A queries, nh, hd] T
  at::Tensor context_k, context_v;  // [T, nkv, hd] T
  at::Tensor block_k, block_v;      // [A B, nkv, hd] T
};
struct attention_output {
  at::Tensor out;  // [A queries, nh, hd] T
  at::Tensor lse;  // [A queries, nh] fp32: log-sum-exp of the scaled scores
};
struct attention_gradients {
  at::Tensor q;                     // [A queries, nh, hd] fp32
  at::Tensor context_k, context_v;  // [T, nkv, hd] fp32
  at::Tensor block_k, block_v;      // [A B, nkv, hd] fp32
};

attention_output block_attention(const attention_layout& layout, const attention_input& input);
attention_output block_attention_reference(const attention_layout& layout,
                                           const attention_input& input);

attention_gradients block_attention_backward(const attention_layout& layout,
                                             const attention_input& input,
                                             const attention_output& output,
                                             const at::Tensor& d_out /* like output.out */);
attention_gradients block_attention_backward_reference(const attention_layout& layout,
                                                       const attention_input& input,
                                                       const attention_output& output,
                                                       const at::Tensor& d_out);

}  // namespace dflash::kernel

// What one pass of the CPU kernels over a target's layers carries besides the weights; for the
// target's own files only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/kernels/target_attention.hpp"
#include "model/target.hpp"

namespace dflash {

struct target::pass {
  at::Tensor residual;                        // [n, H]
  std::vector<float> rope, sliding_rope;      // [n, rotary dims]: cos, then sin
  std::vector<kernel::attention_span> spans;  // one a sequence; with a cache, memory by layer
  kv_cache* cache = nullptr;      // null: sequences begin in this pass, and keys live as long as it
  std::vector<int64_t> slots;     // of the cache, [span]
  at::Tensor mixed, gated;        // [n, heads · hd], [n, I], written over by each layer
  stage_timer* stages = nullptr;  // on, or null
};

// The scale of what the first layer reads, rounded to the compute dtype as transformers does.
double embedding_scale(const target_config& config, compute_dtype dtype);

kernel::attention_shape attention_of(const target_config& config, layer_kind kind);

}  // namespace dflash

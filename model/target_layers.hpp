// Weights of a target's layers, of all families: what a family lacks stays undefined. Matrices are
// in the compute dtype, norms and what the linear layers store in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/packed_linear.hpp"

namespace dflash {

struct attention_weights {
  // [(heads + 2 kv_heads (+ heads)) · hd, H]: queries, keys, values, then the gates of a gated
  // form.
  packed_linear qkv;
  at::Tensor qkv_bias;        // [the same]
  at::Tensor q_norm, k_norm;  // [hd]
  packed_linear o;            // [H, heads · hd]
  at::Tensor o_bias;          // [H]
};

struct linear_weights {
  // [channels + hv · dv + 2 hv, H]: what the convolution takes, the output's gate, β, the decay.
  packed_linear in;
  at::Tensor conv;        // [K, channels]
  at::Tensor decay_bias;  // [hv]
  at::Tensor decay;       // [hv], -exp(A_log)
  at::Tensor norm;        // [dv]
  packed_linear out;      // [H, hv · dv]
};

struct mlp_weights {
  packed_linear gate_up;               // [2 I, H], gate first
  packed_linear down;                  // [H, I]
  at::Tensor gate_up_bias, down_bias;  // [2 I], [H]
};

struct expert_weights {
  at::Tensor router;                 // [E, H]
  std::vector<mlp_weights> experts;  // [E]
  mlp_weights shared;
  at::Tensor shared_gate;  // [1, H]
};

struct target_layer {
  at::Tensor before_mixer, after_mixer;  // [H]
  at::Tensor before_mlp, after_mlp;      // [H]
  attention_weights attention;           // of full and sliding layers
  linear_weights linear;                 // of linear layers
  mlp_weights mlp;                       // of layers without experts
  expert_weights experts;
};

}  // namespace dflash

// The gated delta rule (arXiv 2412.06464, eq. 10) and the short convolution before it, token by
// token over sequences that keep their state: what the linear layers of hybrid targets need on the
// CPU. No autograd; T is fp32 or bf16, state and arithmetic fp32. A row's bits depend on its own
// sequence only, not on how that was cut into chunks nor on the number of threads.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace dflash::kernel {

// out [n, channels] T: out[t] = silu(Σ_j weight[j] · x[t + j]), x [n + taps - 1, channels] T with
// the rows before the first one in front, weight [taps, channels].
void causal_conv_silu(c10::ScalarType dtype,
                      const void* x,
                      const float* weight,
                      int64_t n,
                      int64_t channels,
                      int64_t taps,
                      void* out);

struct delta_shape {
  int64_t key_heads = 0;    // divides value_heads
  int64_t value_heads = 0;  // hv
  int64_t key_dim = 0;      // dk
  int64_t value_dim = 0;    // dv
  int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

struct delta_span {
  const void* qkv = nullptr;     // [rows, channels] T: query, key and value heads
  const float* gates = nullptr;  // [rows, 2 hv]: log of what the state keeps (<= 0), then β
  float* state = nullptr;        // [hv, dk, dv]; null: zeros before, forgotten afterwards
  int64_t rows = 0;
  int64_t settled = 0;  // `state` becomes that after so many rows; the others leave no trace in it
  int64_t silent = 0;   // leading rows without output
  void* out = nullptr;  // [rows - silent, hv · dv] T
};

// S ← e^decay · S; S ← S + k ⊗ β (v - Sᵀk); out = dk^-1/2 · Sᵀq, with q and k divided by their
// norms (eps 1e-6 under the root).
void delta_rule(c10::ScalarType dtype, delta_shape shape, std::span<const delta_span> spans);

}  // namespace dflash::kernel

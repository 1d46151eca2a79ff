// Row-wise steps between the target's matrix products, fused so that each activation is read once.
// No autograd, CPU, contiguous; T is fp32 or bf16, arithmetic fp32. A row's bits depend on that row
// only. Work is spread over the caller's ATen threads.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace dflash::kernel {

// residual [n, d] T += delta [n, d] T (skipped if null), rounded to T as transformers does; then
// out [n, d] T = residual / sqrt(mean(residual^2) + eps) * weight [d]. out may be delta.
void add_rms_norm(c10::ScalarType dtype,
                  void* residual,
                  const void* delta,
                  const float* weight,
                  double eps,
                  int64_t n,
                  int64_t d,
                  void* out);

// In place: each of the `heads` heads of d elements at the start of each row [n, stride] is divided
// by its root mean square (+ eps) and multiplied by weight [d].
void norm_heads(c10::ScalarType dtype,
                void* rows,
                int64_t n,
                int64_t stride,
                int64_t heads,
                int64_t d,
                const float* weight,
                double eps);

// out [n, width] = silu(gate) * up of gate_up [n, 2 width], gate first.
void gated_silu(c10::ScalarType dtype, const void* gate_up, int64_t n, int64_t width, void* out);

// weights [n] = exp((row - shift) · factor), for one row, on the calling thread; row <= shift.
void softmax_weights(
    c10::ScalarType dtype, const void* row, int64_t n, float shift, float factor, float* weights);

}  // namespace dflash::kernel

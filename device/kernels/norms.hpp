// RMSNorm, per-head RMSNorm with rotary positions, SwiGLU: forward and backward over rows. Each
// function takes the Highway kernel for contiguous CPU tensors and the ATen form (*_reference)
// elsewhere; the two agree within rounding. fp32 arithmetic inside; T below is fp32 or bf16.
// Weights of norms are fp32. Blocking; work is spread over the caller's ATen threads in a partition
// that depends on their number alone, so results are the same bits from run to run.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dflash::kernel {

// out = x / sqrt(mean(x^2) + eps) * weight. x [n, d] T or fp32, weight [d], out [n, d] T.
void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps);

// dx = add + gradient (dx undefined: skipped; add undefined: 0; add may be dx), d_weight [d] fp32
// += gradient. dy [n, d] T; x as in the forward pass.
void rms_norm_backward(at::Tensor& dx,
                       at::Tensor& d_weight,
                       const at::Tensor& dy,
                       const at::Tensor& x,
                       const at::Tensor& weight,
                       double eps,
                       const at::Tensor& add = {});
struct norm_gradients {
  at::Tensor dx, d_weight;
};
norm_gradients rms_norm_backward_reference(const at::Tensor& dy,
                                           const at::Tensor& x,
                                           const at::Tensor& weight,
                                           double eps);

// cos and sin of position x frequency, [positions, hd / 2] fp32 each, computed in double.
struct rope_table {
  at::Tensor cos, sin;
};
rope_table make_rope_table(int64_t positions, int64_t head_dim, double theta);

// Head norm, then rotation of the two halves ("neox" layout). x [n, heads, hd] T with a free row
// stride, positions [n] int32, out [n, heads, hd] T contiguous.
void head_norm_rope(at::Tensor& out,
                    const at::Tensor& x,
                    const at::Tensor& weight,
                    const rope_table& table,
                    const at::Tensor& positions,
                    double eps);
at::Tensor head_norm_rope_reference(const at::Tensor& x,
                                    const at::Tensor& weight,
                                    const rope_table& table,
                                    const at::Tensor& positions,
                                    double eps);
// dx [n, heads, hd] T with a free row stride, d_weight [hd] fp32 += gradient. dy fp32 or T,
// contiguous.
void head_norm_rope_backward(at::Tensor& dx,
                             at::Tensor& d_weight,
                             const at::Tensor& dy,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             const rope_table& table,
                             const at::Tensor& positions,
                             double eps);
norm_gradients head_norm_rope_backward_reference(const at::Tensor& dy,
                                                 const at::Tensor& x,
                                                 const at::Tensor& weight,
                                                 const rope_table& table,
                                                 const at::Tensor& positions,
                                                 double eps);

// out = silu(gate) * up. gate_up [n, 2 I] T (gate first), out [n, I] T.
void swiglu(at::Tensor& out, const at::Tensor& gate_up);
at::Tensor swiglu_reference(const at::Tensor& gate_up);
// d_gate_up [n, 2 I] T from d_out [n, I] T; may be gate_up itself.
void swiglu_backward(at::Tensor& d_gate_up, const at::Tensor& d_out, const at::Tensor& gate_up);
at::Tensor swiglu_backward_reference(const at::Tensor& d_out, const at::Tensor& gate_up);

// into (fp32, [r, c], free row stride) = or += from ([r, c] T, contiguous).
void accumulate(at::Tensor& into, const at::Tensor& from, bool overwrite);

}  // namespace dflash::kernel

// ATen forms of norms.hpp: any device, and the reference of the kernels' tests. fp32 (fp64 where
// given fp64) inside.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>

#include "device/kernels/norms.hpp"

namespace dflash::kernel {
namespace {

at::Tensor wide(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

at::Tensor inverse_rms(const at::Tensor& x, double eps) {
  return x.pow(2).mean(-1, true).add(eps).rsqrt();
}

// x [n, heads, hd]; sign 1 forward, -1 back.
at::Tensor rotate(const at::Tensor& x,
                  const rope_table& table,
                  const at::Tensor& positions,
                  double sign) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor c = at::index_select(table.cos, 0, positions).unsqueeze(1).to(x.scalar_type());
  const at::Tensor s =
      at::index_select(table.sin, 0, positions).unsqueeze(1).to(x.scalar_type()).mul(sign);
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * c - b * s, b * c + a * s}, -1);
}

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor v = wide(x);
  return v * inverse_rms(v, eps) * wide(weight);
}

norm_gradients rms_norm_backward_reference(const at::Tensor& dy,
                                           const at::Tensor& x,
                                           const at::Tensor& weight,
                                           double eps) {
  const at::Tensor v = wide(x), g = wide(dy), r = inverse_rms(v, eps);
  const at::Tensor gw = g * wide(weight);
  const at::Tensor dx = r * (gw - v * r.pow(2) * (gw * v).mean(-1, true));
  const int64_t n = x.size(-1);
  return {dx, (g * v * r).reshape({-1, n}).sum(0)};
}

rope_table make_rope_table(int64_t positions, int64_t head_dim, double theta) {
  const auto wide_options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor exponent = at::arange(0, head_dim, 2, wide_options) / -double(head_dim);
  const at::Tensor frequency = at::pow(theta, exponent);
  const at::Tensor angle = at::outer(at::arange(positions, wide_options), frequency);
  return {angle.cos().to(at::kFloat), angle.sin().to(at::kFloat)};
}

at::Tensor head_norm_rope_reference(const at::Tensor& x,
                                    const at::Tensor& weight,
                                    const rope_table& table,
                                    const at::Tensor& positions,
                                    double eps) {
  return rotate(rms_norm_reference(x, weight, eps), table, positions, 1.0);
}

norm_gradients head_norm_rope_backward_reference(const at::Tensor& dy,
                                                 const at::Tensor& x,
                                                 const at::Tensor& weight,
                                                 const rope_table& table,
                                                 const at::Tensor& positions,
                                                 double eps) {
  return rms_norm_backward_reference(rotate(wide(dy), table, positions, -1.0), x, weight, eps);
}

at::Tensor swiglu_reference(const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(1) / 2;
  const at::Tensor g = wide(gate_up.narrow(1, 0, n)), u = wide(gate_up.narrow(1, n, n));
  return g * g.sigmoid() * u;
}

at::Tensor swiglu_backward_reference(const at::Tensor& d_out, const at::Tensor& gate_up) {
  const int64_t n = gate_up.size(1) / 2;
  const at::Tensor g = wide(gate_up.narrow(1, 0, n)), u = wide(gate_up.narrow(1, n, n));
  const at::Tensor d = wide(d_out), s = g.sigmoid();
  return at::cat({d * u * s * (g * (1 - s) + 1), d * g * s}, 1);
}

}  // namespace dflash::kernel

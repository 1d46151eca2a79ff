// ATen form of loss_rows.hpp: any device, and the reference of the kernel's tests.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "config/error.hpp"
#include "device/kernels/gpu_loss.hpp"
#include "device/kernels/loss_rows.hpp"
#include "device/kernels/on_gpu.hpp"
#include "device/upload.hpp"

namespace dflash::kernel {
namespace {

template <class T>
std::vector<T> to_host(const at::Tensor& t, at::ScalarType type) {
  const at::Tensor c = t.to(at::kCPU, type).contiguous();
  const T* p = c.const_data_ptr<T>();
  return {p, p + c.numel()};
}

loss_row_tensors rows_by_operators(const at::Tensor& logits,
                                   const at::Tensor& teacher,
                                   const at::Tensor& labels,
                                   const at::Tensor& weights,
                                   const loss_factors& factors,
                                   at::Tensor* gradient_out) {
  DFLASH_CHECK(teacher.defined() || !factors.teacher(), "a term needs the teacher's logits");
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor z = logits.to(wide);
  const at::Tensor y = labels.unsqueeze(1), &w = weights;
  const at::Tensor alive = w.ne(0);
  const at::Tensor lq = at::log_softmax(z, 1), q = lq.exp();
  const at::Tensor zy = z.gather(1, y);
  const at::Tensor ids = at::arange(z.size(1), y.options()).unsqueeze(0);
  const at::Tensor beats = z.gt(zy).logical_or(z.eq(zy).logical_and(ids.lt(y)));
  const at::Tensor rank = beats.sum(1).masked_fill(alive.logical_not(), -1);
  loss_row_tensors out;
  at::Tensor g = at::zeros_like(z);
  // value [n] and gradient [n, V] of one term
  const auto add = [&](loss_term t, const at::Tensor& value, const at::Tensor& gradient) {
    out.term[index_of(t)] = value.where(alive, at::zeros_like(value));
    g.add_(gradient, factors.of(t));
  };
  const auto own = [](const at::Tensor& value) { return value.unsqueeze(1); };
  add(loss_term::ce, -lq.gather(1, y).squeeze(1), q.scatter_add(1, y, at::zeros_like(zy).sub(1)));
  if (factors.of(loss_term::cap) != 0) {
    const at::Tensor entropy = -(q * lq).sum(1), right = rank.eq(0).to(wide);
    add(loss_term::cap, entropy * right, -q * (lq + own(entropy)) * own(right));
  }
  if (factors.teacher()) {
    const at::Tensor u = teacher.to(wide), lp = at::log_softmax(u, 1), p = lp.exp();
    const at::Tensor kl = (p * (lp - lq)).sum(1);
    const at::Tensor overlap = at::minimum(p, q).sum(1), tv = (p - q).abs().sum(1) * 0.5;
    const at::Tensor sign = (q - p).sign();
    const at::Tensor d_tv = q * (sign - own((q * sign).sum(1))) * 0.5;
    if (factors.of(loss_term::kl) != 0) {
      const double theta = factors.temperature;
      const at::Tensor lps = at::log_softmax(u / theta, 1), lqs = at::log_softmax(z / theta, 1);
      add(loss_term::kl,
          (lps.exp() * (lps - lqs)).sum(1) * (theta * theta),
          (lqs.exp() - lps.exp()) * theta);
    }
    if (factors.of(loss_term::rkl) != 0) {
      const at::Tensor rkl = (q * (lq - lp)).sum(1);
      add(loss_term::rkl, rkl, q * (lq - lp - own(rkl)));
    }
    if (factors.of(loss_term::jsd) != 0) {
      const at::Tensor lm = at::logaddexp(lp, lq) - std::log(2.0);
      const at::Tensor from_q = (q * (lq - lm)).sum(1);
      add(loss_term::jsd,
          ((p * (lp - lm)).sum(1) + from_q) * 0.5,
          q * (lq - lm - own(from_q)) * 0.5);
    }
    if (factors.of(loss_term::tv) != 0) add(loss_term::tv, tv, d_tv);
    if (factors.of(loss_term::nla) != 0) {
      const at::Tensor held = overlap.clamp_min(least_overlap);
      add(loss_term::nla, -held.log(), d_tv * own(overlap.gt(least_overlap).to(wide) / held));
    }
    if (factors.of(loss_term::lk_hybrid) != 0) {
      const at::Tensor blend = (overlap * -lk_eta).exp();
      add(loss_term::lk_hybrid,
          blend * kl + (1 - blend) * tv,
          own(blend) * (q - p) + own(1 - blend) * d_tv);
    }
  }
  if (gradient_out) *gradient_out = g * w.unsqueeze(1);
  out.rank = rank;
  return out;
}

}  // namespace

loss_row_tensors loss_rows_on_device(at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     const at::Tensor& labels,
                                     const at::Tensor& weights,
                                     const loss_factors& factors,
                                     bool gradient) {
  if (gpu::takes(logits))
    return gpu::loss_rows(logits, teacher, labels, weights, factors, gradient);
  at::Tensor g;
  const loss_row_tensors found =
      rows_by_operators(logits, teacher, labels, weights, factors, gradient ? &g : nullptr);
  if (gradient) logits.copy_(g);
  return found;
}

loss_row_results loss_rows_reference(const at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     std::span<const int32_t> labels,
                                     std::span<const float> weights,
                                     const loss_factors& factors,
                                     at::Tensor* gradient_out) {
  const auto device = logits.device();
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const loss_row_tensors r = rows_by_operators(logits,
                                               teacher,
                                               upload(labels, device).to(at::kLong),
                                               upload(weights, device).to(wide),
                                               factors,
                                               gradient_out);
  loss_row_results out;
  out.rank = to_host<int32_t>(r.rank, at::kInt);
  for (size_t t = 0; t < r.term.size(); ++t) {
    if (r.term[t].defined()) out.term[t] = to_host<float>(r.term[t], at::kFloat);
    out.term[t].resize(weights.size());
  }
  return out;
}

}  // namespace dflash::kernel

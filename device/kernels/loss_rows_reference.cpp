// ATen form of loss_rows.hpp: any device, and the reference of the kernel's tests.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "device/kernels/loss_rows.hpp"

namespace dflash::kernel {
namespace {

at::Tensor to_device(std::span<const int32_t> v, const at::Tensor& like) {
  return at::from_blob(const_cast<int32_t*>(v.data()), {static_cast<int64_t>(v.size())}, at::kInt)
      .to(like.device(), at::kLong);
}

template <class T>
std::vector<T> to_host(const at::Tensor& t, at::ScalarType type) {
  const at::Tensor c = t.to(at::kCPU, type).contiguous();
  const T* p = c.const_data_ptr<T>();
  return {p, p + c.numel()};
}

}  // namespace

loss_row_results loss_rows_reference(const at::Tensor& logits,
                                     const at::Tensor& teacher,
                                     std::span<const int32_t> labels,
                                     std::span<const float> weights,
                                     const loss_factors& factors,
                                     at::Tensor* gradient_out) {
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor z = logits.to(wide);
  const at::Tensor y = to_device(labels, logits).unsqueeze(1);
  const at::Tensor w =
      at::from_blob(
          const_cast<float*>(weights.data()), {static_cast<int64_t>(weights.size())}, at::kFloat)
          .to(logits.device(), wide);
  const at::Tensor alive = w.ne(0);
  const at::Tensor lq = at::log_softmax(z, 1);
  const at::Tensor ce = -lq.gather(1, y).squeeze(1);
  const at::Tensor zy = z.gather(1, y);
  const at::Tensor ids = at::arange(z.size(1), y.options()).unsqueeze(0);
  const at::Tensor beats = z.gt(zy).logical_or(z.eq(zy).logical_and(ids.lt(y)));
  const at::Tensor rank = beats.sum(1).masked_fill(alive.logical_not(), -1);
  at::Tensor kl = at::zeros_like(ce);
  at::Tensor g = (lq.exp().scatter_add(1, y, at::zeros_like(zy).sub(1))) * factors.ce;
  if (teacher.defined()) {
    const double theta = factors.temperature;
    const at::Tensor lp = at::log_softmax(teacher.to(wide) / theta, 1);
    const at::Tensor lqt = at::log_softmax(z / theta, 1);
    kl = (lp.exp() * (lp - lqt)).sum(1) * (theta * theta);
    g = g + (lqt.exp() - lp.exp()) * (theta * factors.kl);
  }
  if (gradient_out) *gradient_out = g * w.unsqueeze(1);
  const at::Tensor zero = at::zeros_like(ce);
  return {.ce = to_host<float>(ce.where(alive, zero), at::kFloat),
          .kl = to_host<float>(kl.where(alive, zero), at::kFloat),
          .rank = to_host<int32_t>(rank, at::kInt)};
}

}  // namespace dflash::kernel

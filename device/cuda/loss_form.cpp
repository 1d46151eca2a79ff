#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include "config/error.hpp"
#include "device/cuda/loss_rows.hpp"
#include "device/kernels/gpu_loss.hpp"

namespace dflash::kernel::gpu {

namespace {

template <class T>
void run(at::Tensor& logits,
         const at::Tensor& teacher,
         const at::Tensor& labels,
         const at::Tensor& weights,
         const loss_factors& factors,
         bool gradient,
         const cuda::loss_row_output& out) {
  const cuda::loss_rows_input<T> input{
      .logits = logits.mutable_data_ptr<T>(),
      .teacher = factors.teacher() ? teacher.const_data_ptr<T>() : nullptr,
      .labels = labels.const_data_ptr<int64_t>(),
      .weights = weights.const_data_ptr<float>(),
      .rows = logits.size(0),
      .n = logits.size(1),
      .mix = mix_of(factors),
      .gradient = gradient};
  cuda::loss_rows(input, out, c10::cuda::getCurrentCUDAStream().stream());
}

}  // namespace

loss_row_tensors loss_rows(at::Tensor& logits,
                           const at::Tensor& teacher,
                           const at::Tensor& labels,
                           const at::Tensor& weights,
                           const loss_factors& factors,
                           bool gradient) {
  const auto type = logits.scalar_type();
  DFLASH_CHECK(type == at::kFloat || type == at::kBFloat16, "logits are fp32 or bf16");
  DFLASH_CHECK(logits.is_contiguous() && labels.is_contiguous() && weights.is_contiguous(),
               "rows without gaps");
  DFLASH_CHECK(!factors.teacher() || (teacher.is_contiguous() && teacher.scalar_type() == type &&
                                      teacher.sizes() == logits.sizes()),
               "the teacher's logits are of another shape or dtype");
  const int64_t rows = logits.size(0);
  loss_row_tensors found;
  cuda::loss_row_output out;
  for (size_t t = 0; t < loss_term_count; ++t) {
    if (t != index_of(loss_term::ce) && factors.factor[t] == 0) continue;
    found.term[t] = at::empty({rows}, logits.options().dtype(at::kFloat));
    out.term[t] = found.term[t].mutable_data_ptr<float>();
  }
  found.rank = at::empty({rows}, labels.options());
  out.rank = found.rank.mutable_data_ptr<int64_t>();
  if (type == at::kFloat)
    run<float>(logits, teacher, labels, weights, factors, gradient, out);
  else
    run<c10::BFloat16>(logits, teacher, labels, weights, factors, gradient, out);
  return found;
}

}  // namespace dflash::kernel::gpu

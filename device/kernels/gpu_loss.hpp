// loss_rows_on_device by a kernel of its own, for tensors that on_gpu.hpp takes.
#pragma once

#include "device/kernels/loss_rows.hpp"

namespace dflash::kernel::gpu {

// As loss_rows_on_device, for fp32 and bf16.
loss_row_tensors loss_rows(at::Tensor& logits,
                           const at::Tensor& teacher,
                           const at::Tensor& labels,
                           const at::Tensor& weights,
                           const loss_factors& factors,
                           bool gradient);

}  // namespace dflash::kernel::gpu

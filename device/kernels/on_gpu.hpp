// Whether an operator has a kernel of its own for tensors that lie where `t` does: on a GPU, in a
// program built with CUDA. Elsewhere a kernel's function takes its CPU form or its ATen form
// (*_reference). The forms for GPUs are declared in gpu_*.hpp beside this file, and are defined in
// device/cuda/*_form.cpp; without CUDA, without_gpu.cpp stands in for all of them.
#pragma once

#include <ATen/core/Tensor.h>

namespace dflash::kernel::gpu {

bool takes(const at::Tensor& t);

}  // namespace dflash::kernel::gpu

// Stands in for device/cuda/*_form.cpp in a program without CUDA: nothing is taken, so that the
// forms are never called.
#include "device/kernels/on_gpu.hpp"

namespace dflash::kernel::gpu {

bool takes(const at::Tensor&) {
  return false;
}

}  // namespace dflash::kernel::gpu

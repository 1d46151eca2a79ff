#include "device/kernels/on_gpu.hpp"

namespace dflash::kernel::gpu {

bool takes(const at::Tensor& t) {
  return t.is_cuda();
}

}  // namespace dflash::kernel::gpu

#include "device/cuda/device_name.hpp"

#include <cuda_runtime_api.h>

namespace dflash::cuda {

std::string device_name(int index) {
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) return properties.name;
  (void)cudaGetLastError();  // no device, or no driver
  return {};
}

}  // namespace dflash::cuda

// Tests of this folder run on a device, or say that there is none.
#pragma once

#include <cuda_runtime_api.h>

#include <iostream>

namespace dflash::cuda {

inline bool has_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return true;
  std::cout << "skipped: no device\n";
  return false;
}

}  // namespace dflash::cuda

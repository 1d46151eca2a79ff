// The one way from CUDA's status codes to exceptions. For .cu files only.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace dflash::cuda::detail {

inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  int device = -1;
  (void)cudaGetDevice(&device);
  throw std::runtime_error(std::string(call) + " failed on CUDA device " + std::to_string(device) +
                           ": " + cudaGetErrorString(status));
}

}  // namespace dflash::cuda::detail

#define DFLASH_CUDA_CHECK(call) ::dflash::cuda::detail::check((call), #call)

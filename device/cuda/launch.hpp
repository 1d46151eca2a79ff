// Index arithmetic and small operations of the CUDA kernels, usable on host and device: the CPU
// tests walk all blocks and threads through the same functions. No CUDA header is needed to include
// this.
#pragma once

#include <cstdint>

#include "device/host_device.hpp"

struct CUstream_st;

namespace dflash::cuda {

// cudaStream_t, without its header.
using stream_handle = CUstream_st*;

// The shape of a one-dimensional launch.
struct grid {
  uint32_t blocks = 1;
  uint32_t threads = 256;  // a power of two: block reductions halve it
};

// Enough blocks for one item a thread, at most `most`: kernels stride over the rest.
DFLASH_HOST_DEVICE inline grid grid_for(int64_t items, uint32_t threads, uint32_t most) {
  const int64_t wanted = (items + threads - 1) / threads;
  const int64_t blocks = wanted < 1 ? 1 : wanted > most ? most : wanted;
  return {static_cast<uint32_t>(blocks), threads};
}

// Grid-stride walk: a thread takes first, first + stride, ... below the number of items.
DFLASH_HOST_DEVICE inline int64_t first_item(uint32_t block, uint32_t thread, grid g) {
  return static_cast<int64_t>(block) * g.threads + thread;
}
DFLASH_HOST_DEVICE inline int64_t item_stride(grid g) {
  return static_cast<int64_t>(g.blocks) * g.threads;
}

// Products and sums that the compiler must not contract: bits equal to the CPU's.
DFLASH_HOST_DEVICE inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
DFLASH_HOST_DEVICE inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

}  // namespace dflash::cuda

// A program with libtorch_cuda, NCCL and the CUDA kernels starts on a machine without a GPU.
#include <c10/cuda/CUDAFunctions.h>
#include <nccl.h>

#include <cstdio>

int main() {
  int nccl = 0;
  if (ncclGetVersion(&nccl) != ncclSuccess) return 1;
  std::printf("CUDA parts link: NCCL %d, %d GPUs\n", nccl, int{c10::cuda::device_count()});
  return 0;
}

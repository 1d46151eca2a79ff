#include "device/cuda/check.hpp"
#include "device/cuda/loss_rows.hpp"

namespace dflash::cuda {
namespace {

constexpr uint32_t threads = 512;

template <class T>
__global__ void loss_rows_kernel(
    T* logits, int64_t n, const int32_t* labels, const float* weights, loss_row_result* results) {
  __shared__ row_part shared[threads];
  __shared__ float label_logit;
  T* z = logits + static_cast<int64_t>(blockIdx.x) * n;
  const int32_t label = labels[blockIdx.x];
  const float weight = weights[blockIdx.x];
  if (threadIdx.x == 0)
    label_logit = static_cast<float>(z[label]);  // before the gradient overwrites it
  shared[threadIdx.x] = scan_row(z, n, label, threadIdx.x, threads);
  for (uint32_t half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  if (threadIdx.x == 0) results[blockIdx.x] = result_of(shared[0], label_logit, weight);
  write_row_gradient(z, n, label, weight, log_sum_exp(shared[0]), threadIdx.x, threads);
}

template <class T>
void launch(T* logits,
            int64_t rows,
            int64_t n,
            const int32_t* labels,
            const float* weights,
            loss_row_result* results,
            stream_handle stream) {
  if (rows == 0) return;
  loss_rows_kernel<<<static_cast<uint32_t>(rows), threads, 0, stream>>>(
      logits, n, labels, weights, results);
  DFLASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void loss_rows(float* logits,
               int64_t rows,
               int64_t n,
               const int32_t* labels,
               const float* weights,
               loss_row_result* results,
               stream_handle stream) {
  launch(logits, rows, n, labels, weights, results, stream);
}
void loss_rows(c10::BFloat16* logits,
               int64_t rows,
               int64_t n,
               const int32_t* labels,
               const float* weights,
               loss_row_result* results,
               stream_handle stream) {
  launch(logits, rows, n, labels, weights, results, stream);
}

}  // namespace dflash::cuda

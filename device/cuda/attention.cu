#include "device/cuda/attention.hpp"
#include "device/cuda/check.hpp"

namespace dflash::cuda {
namespace {

// A phase by this thread; all have finished it before any goes on.
struct each_thread {
  template <class Phase>
  __device__ void operator()(const Phase& phase) const {
    phase(threadIdx.x);
    __syncthreads();
  }
};

template <class T>
__global__ void __launch_bounds__(attention_threads)
    forward_kernel(const attention_shape s, const attention_tensors<T> in) {
  extern __shared__ __align__(128) char memory[];
  attend_block<T>(s,
                  in,
                  forward_memory<T>::cut(memory, s.head_dim),
                  blockIdx.x,
                  static_cast<int>(blockIdx.y),
                  static_cast<int>(blockIdx.z) * forward_memory<T>::rows,
                  each_thread{});
}

template <class T>
__global__ void __launch_bounds__(attention_threads)
    query_kernel(const attention_shape s, const attention_backward_tensors<T> in) {
  extern __shared__ __align__(128) char memory[];
  using room = backward_memory<T>;
  query_gradients<T>(s,
                     in,
                     room::cut(memory, s.head_dim, room::own_keys(s.block_size), true),
                     blockIdx.x,
                     static_cast<int>(blockIdx.y),
                     each_thread{});
}

template <class T>
__global__ void __launch_bounds__(attention_threads)
    context_kernel(const attention_shape s, const attention_backward_tensors<T> in) {
  extern __shared__ __align__(128) char memory[];
  using room = backward_memory<T>;
  context_gradients<T>(s,
                       in,
                       room::cut(memory, s.head_dim, room::keys, false),
                       int64_t{blockIdx.x} * room::keys,
                       static_cast<int>(blockIdx.y),
                       each_thread{});
}

template <class Kernel, class In>
void launch(Kernel kernel,
            dim3 blocks,
            int64_t bytes,
            const attention_shape& s,
            const In& in,
            stream_handle stream) {
  if (blocks.x == 0) return;
  DFLASH_CUDA_CHECK(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  kernel<<<blocks, attention_threads, static_cast<size_t>(bytes), stream>>>(s, in);
  DFLASH_CUDA_CHECK(cudaGetLastError());
}

dim3 blocks_of(int64_t x, int y, int z) {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)};
}

template <class T>
void forward(const attention_shape& s, const attention_tensors<T>& in, stream_handle stream) {
  using room = forward_memory<T>;
  launch(&forward_kernel<T>,
         blocks_of(s.blocks, s.kv_heads, (s.rows() + room::rows - 1) / room::rows),
         room::cut(nullptr, s.head_dim).bytes,
         s,
         in,
         stream);
}

template <class T>
void backward(const attention_shape& s,
              const attention_backward_tensors<T>& in,
              stream_handle stream) {
  using room = backward_memory<T>;
  launch(&query_kernel<T>,
         blocks_of(s.blocks, s.kv_heads, 1),
         room::cut(nullptr, s.head_dim, room::own_keys(s.block_size), true).bytes,
         s,
         in,
         stream);
  launch(&context_kernel<T>,
         blocks_of((s.context + room::keys - 1) / room::keys, s.kv_heads, 1),
         room::cut(nullptr, s.head_dim, room::keys, false).bytes,
         s,
         in,
         stream);
}

}  // namespace

void attention_forward(const attention_shape& s,
                       const attention_tensors<float>& in,
                       stream_handle stream) {
  forward(s, in, stream);
}
void attention_forward(const attention_shape& s,
                       const attention_tensors<c10::BFloat16>& in,
                       stream_handle stream) {
  forward(s, in, stream);
}
void attention_backward(const attention_shape& s,
                        const attention_backward_tensors<float>& in,
                        stream_handle stream) {
  backward(s, in, stream);
}
void attention_backward(const attention_shape& s,
                        const attention_backward_tensors<c10::BFloat16>& in,
                        stream_handle stream) {
  backward(s, in, stream);
}

}  // namespace dflash::cuda

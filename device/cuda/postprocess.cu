#include "device/cuda/check.hpp"
#include "device/cuda/postprocess.hpp"

namespace dflash::cuda {
namespace {

constexpr uint32_t threads = 256, most_blocks = 1024;

grid grid_of(const postprocess_task& task) {
  return grid_for(value_groups(task), threads, most_blocks);
}

// Thread 0 of the block gets the joined range of all its threads.
__device__ value_range block_range(value_range mine) {
  __shared__ value_range shared[threads];
  shared[threadIdx.x] = mine;
  for (uint32_t half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  return shared[0];
}

template <class In, class Out>
__global__ void postprocess_kernel(
    const In* in, Out* out, postprocess_task task, grid g, value_range* ranges) {
  value_range range;
  for (int64_t group = first_item(blockIdx.x, threadIdx.x, g); group < value_groups(task);
       group += item_stride(g))
    postprocess_group(in, out, task, group, range);
  range = block_range(range);
  if (threadIdx.x == 0) ranges[blockIdx.x] = range;
}

// One block: blocks' ranges to one.
__global__ void join_kernel(const value_range* ranges, uint32_t count, value_range* out) {
  value_range range;
  for (uint32_t i = threadIdx.x; i < count; i += threads) range = join(range, ranges[i]);
  range = block_range(range);
  if (threadIdx.x == 0) *out = range;
}

template <class In, class Out>
void launch(const In* in,
            Out* out,
            const postprocess_task& task,
            void* scratch,
            value_range* range,
            stream_handle stream) {
  const grid g = grid_of(task);
  auto* ranges = static_cast<value_range*>(scratch);
  postprocess_kernel<<<g.blocks, g.threads, 0, stream>>>(in, out, task, g, ranges);
  DFLASH_CUDA_CHECK(cudaGetLastError());
  join_kernel<<<1, threads, 0, stream>>>(ranges, g.blocks, range);
  DFLASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

int64_t postprocess_scratch_bytes(const postprocess_task& task) {
  return static_cast<int64_t>(grid_of(task).blocks * sizeof(value_range));
}

void postprocess(const float* in,
                 float* out,
                 const postprocess_task& t,
                 void* scratch,
                 value_range* range,
                 stream_handle s) {
  launch(in, out, t, scratch, range, s);
}
void postprocess(const float* in,
                 c10::BFloat16* out,
                 const postprocess_task& t,
                 void* scratch,
                 value_range* range,
                 stream_handle s) {
  launch(in, out, t, scratch, range, s);
}
void postprocess(const c10::BFloat16* in,
                 float* out,
                 const postprocess_task& t,
                 void* scratch,
                 value_range* range,
                 stream_handle s) {
  launch(in, out, t, scratch, range, s);
}
void postprocess(const c10::BFloat16* in,
                 c10::BFloat16* out,
                 const postprocess_task& t,
                 void* scratch,
                 value_range* range,
                 stream_handle s) {
  launch(in, out, t, scratch, range, s);
}

}  // namespace dflash::cuda

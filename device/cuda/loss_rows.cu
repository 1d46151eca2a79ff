#include "device/cuda/check.hpp"
#include "device/cuda/loss_rows.hpp"

namespace dflash::cuda {
namespace {

// The value of all threads together, in every thread; the order of additions is fixed.
template <class Part, class Join>
__device__ Part over_block(Part* shared, const Part& own, const Join& join_two) {
  __syncthreads();  // the last result has been read
  shared[threadIdx.x] = own;
  for (uint32_t half = loss_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half)
      shared[threadIdx.x] = join_two(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  return shared[0];
}

template <int width, class T>
__global__ void __launch_bounds__(loss_threads, 2)
    loss_rows_kernel(const loss_rows_input<T> in, const loss_row_output out) {
  using kernel::row_sums;
  __shared__ row_part parts[loss_threads];
  __shared__ row_sums sums[loss_threads];
  const int64_t row = blockIdx.x;
  T* const z = in.logits + row * in.n;
  const T* const u = in.teacher == nullptr ? nullptr : in.teacher + row * in.n;
  const float weight = in.weights[row];
  const uint32_t thread = threadIdx.x;
  float term[kernel::loss_term_count] = {};
  int64_t rank = -1;
  if (weight == 0.0f) {
    if (in.gradient) clear_row<width>(z, in.n, thread, loss_threads);
  } else {
    const int64_t label = in.labels[row];
    const float scale = 1.0f / in.mix.temperature;
    const float own = static_cast<float>(z[label]);  // before the gradient overwrites it
    const row_part part =
        over_block(parts,
                   scan_row<width>(z, u, in.n, label, scale, thread, loss_threads),
                   [=](const row_part& a, const row_part& b) { return join(a, b, scale); });
    const row_task task = task_of(in.mix, part, label, weight, u != nullptr);
    const auto add = [](const row_sums& a, const row_sums& b) { return join(a, b); };
    row_sums s;
    const bool early = task.needs_sums() || (!in.gradient && u != nullptr);
    if (early) s = over_block(sums, sum_row<width>(task, z, u, in.n, thread, loss_threads), add);
    if (in.gradient) {
      const row_sums late = write_row<width>(task, s, z, u, in.n, thread, loss_threads);
      if (!early && u != nullptr) s = over_block(sums, late, add);
    }
    rank = part.beats;
    kernel::row_values(in.mix, s, task.cap, term);
    term[0] = task.z_lse - own;
  }
  if (thread != 0) return;
  for (size_t t = 0; t < kernel::loss_term_count; ++t)
    if (out.term[t] != nullptr) out.term[t][row] = term[t];
  out.rank[row] = rank;
}

template <class T>
void launch(const loss_rows_input<T>& in, const loss_row_output& out, stream_handle stream) {
  if (in.rows == 0) return;
  const auto blocks = static_cast<uint32_t>(in.rows);
  if (wide_rows(in.logits, in.teacher, in.n))
    loss_rows_kernel<loss_width<T>()><<<blocks, loss_threads, 0, stream>>>(in, out);
  else
    loss_rows_kernel<1><<<blocks, loss_threads, 0, stream>>>(in, out);
  DFLASH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void loss_rows(const loss_rows_input<float>& in, const loss_row_output& out, stream_handle stream) {
  launch(in, out, stream);
}
void loss_rows(const loss_rows_input<c10::BFloat16>& in,
               const loss_row_output& out,
               stream_handle stream) {
  launch(in, out, stream);
}

}  // namespace dflash::cuda

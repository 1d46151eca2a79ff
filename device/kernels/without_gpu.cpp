// Stands in for device/cuda/*_form.cpp in a program without CUDA: nothing is taken, so that the
// forms are never called.
#include "config/error.hpp"
#include "device/kernels/gpu_attention.hpp"
#include "device/kernels/gpu_loss.hpp"
#include "device/kernels/on_gpu.hpp"

namespace dflash::kernel::gpu {

namespace {

[[noreturn]] void nobody_calls() {
  DFLASH_CHECK(false, "a kernel of a GPU in a program without CUDA");
}

}  // namespace

bool takes(const at::Tensor&) {
  return false;
}

bool attends(const attention_layout&, const attention_input&) {
  return false;
}
attention_output block_attention(const attention_layout&, const attention_input&) {
  nobody_calls();
}
attention_gradients block_attention_backward(const attention_layout&,
                                             const attention_input&,
                                             const attention_output&,
                                             const at::Tensor&) {
  nobody_calls();
}

loss_row_tensors loss_rows(at::Tensor&,
                           const at::Tensor&,
                           const at::Tensor&,
                           const at::Tensor&,
                           const loss_factors&,
                           bool) {
  nobody_calls();
}

}  // namespace dflash::kernel::gpu

// block_attention by kernels of their own, for tensors that on_gpu.hpp takes.
#pragma once

#include "device/kernels/block_attention.hpp"

namespace dflash::kernel::gpu {

// Whether the kernels take heads and blocks of this size, on this GPU: they live in shared memory.
bool attends(const attention_layout& layout, const attention_input& input);

// As those of block_attention.hpp. layout.spans is read.
attention_output block_attention(const attention_layout& layout, const attention_input& input);
attention_gradients block_attention_backward(const attention_layout& layout,
                                             const attention_input& input,
                                             const attention_output& output,
                                             const at::Tensor& d_out);

}  // namespace dflash::kernel::gpu

// Small lists of the host as tensors of a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace dflash {

// Copies; [n] of the list's type. On another device than the CPU the copy goes through pinned
// memory in the order of the thread's current stream: the host does not wait for it.
at::Tensor upload(std::span<const int32_t> list, const at::Device& device);
at::Tensor upload(std::span<const int64_t> list, const at::Device& device);
at::Tensor upload(std::span<const float> list, const at::Device& device);

}  // namespace dflash

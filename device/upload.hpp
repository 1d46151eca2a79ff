// Small lists of the host as tensors of a device, and tensors of a device on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

// Copies; [n] of the list's type. On another device than the CPU the copy goes through pinned
// memory in the order of the thread's current stream: the host does not wait for it.
at::Tensor upload(std::span<const int32_t> list, const at::Device& device);
at::Tensor upload(std::span<const int64_t> list, const at::Device& device);
at::Tensor upload(std::span<const float> list, const at::Device& device);

// Contiguous, on the host; tensors that lie there already are shared. All lie on one device; from
// another one than the CPU they come through pinned memory, and the host waits once for all that
// the thread's current stream has to do.
std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors);

}  // namespace dflash

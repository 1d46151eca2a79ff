#include "device/upload.hpp"

#include <ATen/ops/empty.h>

#include <cstring>

#include "device/lane_streams.hpp"

namespace dflash {

namespace {

template <class T>
at::Tensor copied(std::span<const T> list, at::ScalarType type, const at::Device& device) {
  const bool pinned = !device.is_cpu() && !list.empty();
  const at::Tensor here = at::empty({static_cast<int64_t>(list.size())},
                                    at::TensorOptions().dtype(type).pinned_memory(pinned));
  if (!list.empty()) std::memcpy(here.mutable_data_ptr(), list.data(), list.size_bytes());
  // The allocator of pinned memory keeps what a copy under way still reads.
  return device.is_cpu() ? here : here.to(device, /*non_blocking=*/true);
}

}  // namespace

at::Tensor upload(std::span<const int32_t> list, const at::Device& device) {
  return copied(list, at::kInt, device);
}
at::Tensor upload(std::span<const int64_t> list, const at::Device& device) {
  return copied(list, at::kLong, device);
}
at::Tensor upload(std::span<const float> list, const at::Device& device) {
  return copied(list, at::kFloat, device);
}

std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& t : tensors) {
    if (t.is_cpu()) {
      here.push_back(t.contiguous());
      continue;
    }
    here.push_back(at::empty(
        t.sizes(), at::TensorOptions().dtype(t.scalar_type()).pinned_memory(t.numel() > 0)));
    here.back().copy_(t, /*non_blocking=*/true);
  }
  if (!tensors.empty()) wait_for(tensors.front().device());
  return here;
}

}  // namespace dflash

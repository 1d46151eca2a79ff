#include "device/upload.hpp"

#include <ATen/ops/empty.h>

#include <cstring>

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

}  // namespace dflash

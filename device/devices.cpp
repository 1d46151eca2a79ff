#include "device/devices.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#ifdef DFLASH_WITH_CUDA
#include "device/cuda/device_name.hpp"
#include "device/cuda/graph_recorder.hpp"
#include "device/cuda/stage_clock.hpp"
#endif

namespace dflash {

namespace {

// Null: it does not count (the CPU's), or there is none.
c10::DeviceAllocator* counting_allocator(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  return allocator != nullptr && allocator->initialized() ? allocator : nullptr;
}

}  // namespace

bool built_with_cuda() {
#ifdef DFLASH_WITH_CUDA
  return true;
#else
  return false;
#endif
}

int cuda_devices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

std::string device_name([[maybe_unused]] c10::Device device) {
#ifdef DFLASH_WITH_CUDA
  if (device.is_cuda()) return cuda::device_name(device.index());
#endif
  return {};
}

std::optional<device_clock> clock_of([[maybe_unused]] c10::Device device) {
#ifdef DFLASH_WITH_CUDA
  if (device.is_cuda()) return cuda::make_stage_clock();
#endif
  return std::nullopt;
}

record_function recorder_of([[maybe_unused]] c10::Device device) {
#ifdef DFLASH_WITH_CUDA
  if (device.is_cuda()) return cuda::make_graph_recorder();
#endif
  return {};
}

std::optional<int64_t> peak_memory_bytes(c10::Device device) {
  auto* allocator = counting_allocator(device);
  if (allocator == nullptr) return std::nullopt;
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator->getDeviceStats(device.index()).allocated_bytes.at(all).peak;
}

void reset_peak_memory(c10::Device device) {
  if (auto* allocator = counting_allocator(device)) allocator->resetPeakStats(device.index());
}

}  // namespace dflash

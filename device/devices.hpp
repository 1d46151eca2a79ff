// Devices beside the CPU: which ones this program can use, and what it knows of them. The only
// place that asks whether it was built with CUDA.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "device/recording.hpp"
#include "device/stage_timer.hpp"

namespace dflash {

// Whether the CUDA parts are in this program; there may be no GPU all the same.
bool built_with_cuda();
// 0 without a GPU, a driver, or the CUDA parts.
int cuda_devices();

// The name that the driver gives it; empty: there is no such device.
std::string device_name(c10::Device device);

// For the stages of what the calling thread gives to the device; nothing: the host's clock is
// right.
std::optional<device_clock> clock_of(c10::Device device);

// For what the calling thread gives to the device again and again; empty: it records nothing.
record_function recorder_of(c10::Device device);

// Of the memory that LibTorch's allocator gave out there: the most bytes at one time since
// reset_peak_memory, or nothing where no allocator counts (the CPU).
std::optional<int64_t> peak_memory_bytes(c10::Device device);
void reset_peak_memory(c10::Device device);

}  // namespace dflash

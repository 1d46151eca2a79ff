#include "device/devices.hpp"

#include <catch2/catch.hpp>

namespace dflash {

TEST_CASE("the CPU has no name, no clock and no count of memory of its own") {
  const c10::Device cpu(c10::kCPU);
  CHECK(device_name(cpu).empty());
  CHECK_FALSE(clock_of(cpu));
  reset_peak_memory(cpu);
  CHECK_FALSE(peak_memory_bytes(cpu));
}

TEST_CASE("a device that nobody has is asked for nothing") {
  if (cuda_devices() > 0) return;
  const c10::Device gpu(c10::kCUDA, 0);
  CHECK(device_name(gpu).empty());
  reset_peak_memory(gpu);
  CHECK_FALSE(peak_memory_bytes(gpu));
}

}  // namespace dflash

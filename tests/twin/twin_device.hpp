// A device for tests: "twin:0", "twin:1" ... compute with the CPU's operators in host memory, but
// are what a GPU is to LibTorch: another device, with streams, events, an allocator of its own and
// tensors that the host may not look into. Nothing runs later than it is asked for; instead every
// operator, copy and release is checked against the order that streams, events and waits of the
// host promise, as the real device would need it. What has no promise is a fault, though its values
// were right this time. Host threads count as ordered as they ran.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/recording.hpp"

namespace dflash::test {

inline constexpr c10::DeviceIndex twin_count = 4;

inline c10::Device twin(c10::DeviceIndex index) {
  return {c10::DeviceType::PrivateUse1, index};
}

// Since the last reset_twins, over all twins and threads.
struct twin_counts {
  uint64_t operators = 0;
  uint64_t allocations = 0;
  uint64_t host_waits = 0;          // the host waited for a stream, a device or an event
  uint64_t uploads = 0;             // of these: a copy to the device that was not asynchronous
  uint64_t downloads = 0;           // of these: a copy or a number to the host
  uint64_t events = 0;              // recorded
  std::vector<std::string> faults;  // what has no promised order, 20 at most
};
twin_counts twins();
void reset_twins();

// Recordings on twins, as CUDA graphs are on GPUs: every operator that the calling thread gives to
// a twin is kept with its tensors, and done again into the same memory. What a graph cannot hold is
// a fault: a copy from or to the host, a number that the host reads, a wait.
record_function twin_recorder();

}  // namespace dflash::test

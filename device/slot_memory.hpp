// The tensors that fill the slots of a pool on a device. Each slot has its own, allocated when it
// is filled first and filled again from then on, so that no allocator stands between streams: who
// fills a slot waits, on the device, for the one that read it last. The host never waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "device/ready_event.hpp"

namespace dflash {

class slot_memory {
public:
  slot_memory(at::Device device, int64_t slots);
  slot_memory(const slot_memory&) = delete;
  slot_memory& operator=(const slot_memory&) = delete;
  // Waits for the last readers.
  ~slot_memory();

  const at::Device& device() const { return device_; }

  // Copies into the slot, in the calling thread's current streams; the first `cast` tensors become
  // `type`, the others stay what they are. The same shapes each time. By who holds the slot's
  // lease.
  std::vector<at::Tensor> fill(int64_t slot,
                               const std::vector<at::Tensor>& from,
                               int64_t cast,
                               at::ScalarType type);
  // The slot is free once all is done that this thread has asked of the device so far. By who
  // returns the lease.
  void leave(int64_t slot) noexcept;

private:
  struct place {
    std::vector<at::Tensor> tensors;
    ready_event left;
    bool unknown = false;  // no mark could be made
  };
  at::Device device_;
  std::vector<place> places_;  // [slot]; each is used by who has the slot
};

}  // namespace dflash

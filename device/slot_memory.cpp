#include "device/slot_memory.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <spdlog/spdlog.h>

#include <exception>

#include "config/error.hpp"
#include "device/lane_streams.hpp"

namespace dflash {

slot_memory::slot_memory(at::Device device, int64_t slots)
    : device_(device), places_(static_cast<size_t>(slots)) {}

slot_memory::~slot_memory() {
  try {
    for (place& p : places_) p.left.wait();
    wait_for(device_);
  } catch (const std::exception& e) {
    spdlog::error("{} does not end what it was asked: {}", device_.str(), e.what());
  }
}

std::vector<at::Tensor> slot_memory::fill(int64_t slot,
                                          const std::vector<at::Tensor>& from,
                                          int64_t cast,
                                          at::ScalarType type) {
  place& p = places_.at(static_cast<size_t>(slot));
  if (p.unknown) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  p.unknown = false;
  p.left.wait();
  if (p.tensors.empty())
    for (size_t i = 0; i < from.size(); ++i) {
      const bool changes = static_cast<int64_t>(i) < cast;
      p.tensors.push_back(at::empty(
          from[i].sizes(),
          at::TensorOptions().dtype(changes ? type : from[i].scalar_type()).device(device_)));
    }
  DFLASH_CHECK(from.size() == p.tensors.size(), "a slot is filled alike each time", from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    DFLASH_CHECK(from[i].sizes() == p.tensors[i].sizes(), "a slot is filled alike each time", i);
    p.tensors[i].copy_(from[i], /*non_blocking=*/true);
  }
  return p.tensors;
}

void slot_memory::leave(int64_t slot) noexcept {
  place& p = places_.at(static_cast<size_t>(slot));
  try {
    p.left = mark(device_);
  } catch (const std::exception&) {  // the next to fill it waits for the whole device
    p.unknown = true;
  }
}

}  // namespace dflash

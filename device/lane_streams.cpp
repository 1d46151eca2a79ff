#include "device/lane_streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

namespace dflash {

void use_devices(std::span<const c10::Device> devices) {
  for (const c10::Device& device : devices) {
    if (device.is_cpu()) continue;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.exchangeStream(guard.getNewStream(device));
  }
  for (const c10::Device& device : devices) {
    if (device.is_cpu()) continue;
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    return;
  }
}

ready_event mark(c10::Device device) {
  if (device.is_cpu()) return {};
  const c10::impl::VirtualGuardImpl guard(device.type());
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(guard.getStream(device));
  return ready_event(std::move(event));
}

void wait_for(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace dflash

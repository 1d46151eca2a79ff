#include "device/ready_event.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dflash {

void ready_event::block() const {
  const c10::impl::VirtualGuardImpl guard(event_->device_type());
  event_->block(guard.getStream(event_->device()));
}

}  // namespace dflash

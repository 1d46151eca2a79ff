// Marks the moment when a tensor's bytes are valid. A tensor made on the CPU is valid when its
// producer hands it over, so there the event is empty and waiting costs one branch; on a device it
// wraps the event recorded on the producer's stream and makes the consumer's stream wait, never the
// host.
#pragma once

#include <c10/core/Event.h>

#include <memory>

namespace dflash {

class ready_event {
public:
  ready_event() = default;
  explicit ready_event(std::shared_ptr<c10::Event> event) : event_(std::move(event)) {}

  // Makes the calling thread's current stream of the event's device wait. Does not block the host.
  void wait() const {
    if (event_) block();
  }
  // True on the CPU; on a device, whether the producer's work is done. Does not block.
  bool is_ready() const { return !event_ || event_->query(); }

private:
  void block() const;
  std::shared_ptr<c10::Event> event_;
};

}  // namespace dflash

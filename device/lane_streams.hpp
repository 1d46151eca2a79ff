// What a lane's thread is to its devices: a stream of its own on each, marks in it, and waits for
// it. Written for any device that LibTorch knows, by its guards; on the CPU all of it is nothing.
#pragma once

#include <c10/core/Device.h>

#include <span>

#include "device/ready_event.hpp"

namespace dflash {

// In the lane's thread, first of all: makes the first of the devices current (threads do not
// inherit one) and gives the thread a stream of its own on each, which what it computes from here
// on goes to.
void use_devices(std::span<const c10::Device> devices);

// Valid once all is done that this thread has asked of the device so far.
ready_event mark(c10::Device device);

// The host waits for all that this thread has asked of the device so far: then any other thread and
// stream may use what came of it.
void wait_for(c10::Device device);

}  // namespace dflash

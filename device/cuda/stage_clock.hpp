// The clock of stages on a CUDA device: events in the stream of the calling thread, read when they
// have passed, and NVTX ranges. Its twin on the CPU is the steady clock of stage_timer itself. No
// CUDA header is needed to include this.
#pragma once

#include "device/stage_timer.hpp"

namespace dflash::cuda {

// For the calling thread, its device, and whatever stream is current there when a moment is
// recorded. Waits for the device once, here, to set its clock by the host's; never again.
device_clock make_stage_clock();

}  // namespace dflash::cuda

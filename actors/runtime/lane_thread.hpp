// Set-up of the calling thread as a lane.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <span>
#include <string>

namespace dflash {

// Names the thread (15 characters at most) and sets how many ATen threads its work uses; 0 leaves
// that alone. First thing in the thread: it does not act on work already begun. The count changes
// bits. devices: as of use_devices.
void set_up_lane_thread(const std::string& name,
                        int64_t threads,
                        std::span<const c10::Device> devices = {});

}  // namespace dflash

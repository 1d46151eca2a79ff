// The name that the driver gives a device. No CUDA header is needed to include this.
#pragma once

#include <string>

namespace dflash::cuda {

// Empty: there is no such device here.
std::string device_name(int index);

}  // namespace dflash::cuda

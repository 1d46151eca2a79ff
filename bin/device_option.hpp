// Where the commands beside `dflash train` compute: devices named by an option or as lanes.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "model/compute_dtype.hpp"

namespace dflash {

/// Throws error, naming `key`, where `lane` (cpu:I or cuda:I) has no device in this program or on
/// this host.
void check_device_of_lane(const std::string& lane, const std::string& key);

/// "cpu" or "cuda:I", the value of --device. Throws error for anything else and where there is no
/// such device; without CUDA in the program "cuda:0" is refused too.
c10::Device parse_device(const std::string& given);

/// "auto" is bf16 on a GPU, which is made for it, and what the CPU is good at elsewhere.
compute_dtype choose_compute_dtype(const std::string& name, c10::Device device);

inline constexpr const char* device_help = "cpu or cuda:I: where targets and drafters compute";

}  // namespace dflash

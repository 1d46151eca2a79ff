// What devices can compute at best, for the share of it that a run uses.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

/// FLOP/s of dense bf16 products with sums in fp32 (the vendor's data sheet, without sparsity), by
/// the name that the driver gives the device; nothing: not in the table. A part of a device (MIG)
/// is in none: a wrong share would be worse than none.
std::optional<double> known_peak_flops(std::string_view device);

/// Of all of them together; nothing if one is not known, or there is none.
std::optional<double> known_peak_flops(const std::vector<std::string>& devices);

}  // namespace dflash

// Quantities as people read them: three digits and a unit.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dflash {

std::string bytes_text(std::uint64_t bytes);            // "512 B", "8.00 GB" (powers of 1000)
std::string duration_text(std::chrono::nanoseconds d);  // "350 ns", "12.4 ms", "4 min 07 s"
std::string count_text(double count);                   // "7", "12.3k", "4.56M"
std::string rate_text(double per_second, const std::string& unit);  // "12.3k tokens/s"
std::string share_text(double share);                               // "35 %", "<1 %", "0 %"

/// Shortest text that reads back as the same double; the same on every machine and in every locale.
/// "null" if it is not finite, as JSON needs it.
std::string json_number(double value);

}  // namespace dflash

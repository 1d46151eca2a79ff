// Doubles inside messages travel as their bits: CAF 0.17 changes NaN, denormals and -0 and never
// ends on infinities when it serialises floating point (its issue 1107).
#pragma once

#include <bit>
#include <cstdint>

namespace dflash {

struct f64_bits {
  uint64_t bits = 0;

  f64_bits() = default;
  f64_bits(double value) : bits(std::bit_cast<uint64_t>(value)) {}  // NOLINT: a transparent wrapper
  operator double() const { return std::bit_cast<double>(bits); }   // NOLINT
  bool operator==(const f64_bits& other) const { return bits == other.bits; }
};

}  // namespace dflash

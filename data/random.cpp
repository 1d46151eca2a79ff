#include "data/random.hpp"

#include <cmath>
#include <numbers>

#include "config/error.hpp"

namespace dflash {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  // Multipliers and Weyl increments of the paper's table 2 and section 3.
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0],
         static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1],
         static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

std::array<uint32_t, 4> random_stream::block(uint64_t i) const {
  DFLASH_CHECK(i < uint64_t{1} << 56, "a stream has 2^56 blocks", i);
  const std::array<uint32_t, 4> counter = {
      static_cast<uint32_t>(i),
      static_cast<uint32_t>(i >> 32) | static_cast<uint32_t>(domain) << 24,
      static_cast<uint32_t>(key),
      static_cast<uint32_t>(key >> 32)};
  return philox4x32(counter, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

uint32_t random_stream::u32(uint64_t i) const {
  return block(i / 4)[i % 4];
}

uint64_t random_stream::u64(uint64_t i) const {
  const auto words = block(i / 2);
  const size_t low = i % 2 * 2;
  return uint64_t{words[low + 1]} << 32 | words[low];
}

double random_stream::uniform(uint64_t i) const {
  return static_cast<double>(u64(i) >> 11) * 0x1p-53;
}

uint64_t random_stream::below(uint64_t i, uint64_t n) const {
  DFLASH_CHECK(n > 0, "a number below 0 was asked for");
  return random_below(u64(i), n);
}

double random_stream::normal(uint64_t i) const {
  const auto words = block(i / 4);
  const size_t pair = i % 4 / 2 * 2;
  // (0, 1]: the logarithm must not see 0.
  const double u = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32;
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(words[pair + 1]) * 0x1p-32);
  const double radius = std::sqrt(-2.0 * std::log(u));
  return i % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

}  // namespace dflash

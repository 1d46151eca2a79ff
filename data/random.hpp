// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). A number is a function of (seed, domain, key, i), so that a batch can be made
// again by anyone, in any order, on any thread, and nothing needs to be saved.
#pragma once

#include <array>
#include <cstdint>

namespace dflash {

/// The bare generator: 10 rounds.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Scales 64 random bits to [0, n): the high half of their product.
inline uint64_t random_below(uint64_t bits, uint64_t n) {
  // 64 × 64 → 128 by halves: the standard has no wider integer.
  const uint64_t low = (bits & 0xffffffff) * (n & 0xffffffff);
  const uint64_t mid = (bits >> 32) * (n & 0xffffffff) + (low >> 32);
  const uint64_t mid2 = (bits & 0xffffffff) * (n >> 32) + (mid & 0xffffffff);
  return (bits >> 32) * (n >> 32) + (mid >> 32) + (mid2 >> 32);
}

/// What the numbers are for; streams of different domains never meet. Values are part of what a
/// seed means: append only.
enum class random_domain : uint32_t { shuffle, anchors, noise, sampling, init, prefix, service };

/// One stream: a plain value. Philox key = seed; counter = (i, domain, key). i < 2^56.
/// The accessors read the same bits in different ways: use one of them per stream.
struct random_stream {
  uint64_t seed = 0;
  random_domain domain = random_domain::shuffle;
  uint64_t key =
      0;  // batch number, epoch, prompt, tensor: whatever tells streams of a domain apart

  std::array<uint32_t, 4> block(uint64_t i) const;
  uint32_t u32(uint64_t i) const;  // word i % 4 of block i / 4
  uint64_t u64(uint64_t i) const;  // half i % 2 of block i / 2, low word first
  /// [0, 1), 53 bits.
  double uniform(uint64_t i) const;
  /// [0, n), n ≥ 1; the bias is below n / 2^64.
  uint64_t below(uint64_t i, uint64_t n) const;
  /// Standard normal by Box–Muller; numbers 4 j … 4 j + 3 come from block j.
  double normal(uint64_t i) const;
};

}  // namespace dflash

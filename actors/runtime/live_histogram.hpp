// Durations in buckets that one thread fills and any thread reads meanwhile: a reader may miss the
// newest ones, never sees torn numbers. Quantiles are right within 1/8.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace dflash {

class live_histogram {
public:
  live_histogram() = default;
  live_histogram(const live_histogram& other) {
    for (size_t b = 0; b < buckets; ++b)
      counts_[b].store(other.counts_[b].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  live_histogram& operator=(const live_histogram&) = delete;

  // Owner only: no other thread writes, so that no locked instruction is needed.
  void add(int64_t ns) {
    auto& count = counts_[bucket_of(ns > 0 ? static_cast<uint64_t>(ns) : 0)];
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  uint64_t count() const { return count_to(UINT64_MAX); }
  // How many were at most so long, within the width of a bucket.
  uint64_t count_to(uint64_t ns) const {
    uint64_t sum = 0;
    for (size_t b = 0; b < buckets && middle_of(b) <= ns; ++b)
      sum += counts_[b].load(std::memory_order_relaxed);
    return sum;
  }
  int64_t quantile(double q) const {
    const double wanted = q * static_cast<double>(count());
    uint64_t seen = 0;
    for (size_t b = 0; b < buckets; ++b) {
      const uint64_t here = counts_[b].load(std::memory_order_relaxed);
      seen += here;
      if (here > 0 && static_cast<double>(seen) >= wanted)
        return static_cast<int64_t>(middle_of(b));
    }
    return 0;
  }

private:
  static constexpr int sub_bits = 2;  // 4 buckets per power of two
  static constexpr size_t buckets = (64 - sub_bits + 1) << sub_bits;

  // Values below 4 have a bucket each; above, the top three bits choose one of 4 per power of two.
  static size_t bucket_of(uint64_t ns) {
    constexpr uint64_t linear = uint64_t{1} << sub_bits;
    if (ns < linear) return static_cast<size_t>(ns);
    const int shift = static_cast<int>(std::bit_width(ns)) - 1 - sub_bits;
    return (static_cast<size_t>(shift + 1) << sub_bits) +
           static_cast<size_t>((ns >> shift) - linear);
  }
  static uint64_t middle_of(size_t bucket) {
    constexpr size_t linear = size_t{1} << sub_bits;
    if (bucket < linear) return bucket;
    const auto shift = static_cast<int>((bucket >> sub_bits) - 1);
    return ((linear + bucket % linear) << shift) + ((uint64_t{1} << shift) >> 1);
  }

  std::array<std::atomic<uint32_t>, buckets> counts_{};  // [bucket]
};

}  // namespace dflash

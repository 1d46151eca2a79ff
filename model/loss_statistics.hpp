// Running mean and variance of the steps' losses, and how far a new one lies from them. Part of a
// checkpoint: a resumed run goes on with the same bits.
#pragma once

#include <cstdint>
#include <optional>

namespace dflash {

struct loss_statistics {
  static constexpr uint64_t window = 128;  // steps: older ones fade
  static constexpr uint64_t least = 16;    // steps before there is a score

  uint64_t count = 0;
  double mean = 0, variance = 0;

  // (loss - mean) / standard deviation of the losses so far; nothing while they are too few or all
  // the same.
  std::optional<double> score(double loss) const;
  void add(double loss);
  bool operator==(const loss_statistics&) const = default;
};

}  // namespace dflash

#include "model/loss_statistics.hpp"

#include <algorithm>
#include <cmath>

namespace dflash {

std::optional<double> loss_statistics::score(double loss) const {
  if (count < least || !(variance > 0)) return std::nullopt;
  return (loss - mean) / std::sqrt(variance);
}

// The plain mean and variance of the first `window` losses, exponentially fading ones from then on.
void loss_statistics::add(double loss) {
  ++count;
  const double share = 1.0 / static_cast<double>(std::min(count, window));
  const double delta = loss - mean;
  mean += share * delta;
  variance = (1 - share) * (variance + share * delta * delta);
}

}  // namespace dflash

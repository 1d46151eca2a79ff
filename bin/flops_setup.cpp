#include "bin/flops_setup.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "bin/lane_work.hpp"
#include "device/devices.hpp"
#include "device/peak_flops.hpp"
#include "model/flops.hpp"

namespace dflash {

namespace {

// The name of a lane's device; empty: a processor, or a GPU that is not of this host.
std::string device_of(const lane_name& lane) {
  return lane.node.empty() ? device_name(device_of_lane(lane)) : std::string();
}

// Of all devices of the layout together; 0: not known. The table is of bf16.
double peak_flops_of(const training_setup& s) {
  if (s.config.metrics.peak_flops > 0) return s.config.metrics.peak_flops;
  if (s.dtype != compute_dtype::bf16) return 0;
  std::set<std::string> lanes(s.config.layout.drafters.begin(), s.config.layout.drafters.end());
  if (!s.from_disk()) lanes.insert(s.config.layout.targets.begin(), s.config.layout.targets.end());
  std::vector<std::string> devices;
  for (const std::string& lane : lanes) devices.push_back(device_of(parse_lane(lane)));
  return known_peak_flops(devices).value_or(0);
}

}  // namespace

void set_flops(training_setup& s, const target_config& shape) {
  const batch_source& source = *s.parts.source;
  const double rows = static_cast<double>(source.rows());
  const double documents = static_cast<double>(source.documents().size());
  const double mean =
      std::min<double>(static_cast<double>(source.row_tokens()),
                       rows * static_cast<double>(source.row_tokens()) / std::max(1.0, documents));
  int64_t layers = s.parts.shape.last ? shape.layers : 0;
  for (const int tap : s.drafter.taps) layers = std::max<int64_t>(layers, tap + 1);
  s.parts.target_flops =
      s.from_disk() ? 0 : target_row_flops(shape, layers, source.row_tokens(), mean);
  s.parts.drafter_flops = drafter_batch_flops(
      s.drafter, source.row_tokens(), source.anchors(), mean, s.parts.shape.last);
  s.parts.peak_flops = peak_flops_of(s);
}

}  // namespace dflash

#include "bin/throughput_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/runtime/limits.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace {

constexpr uint64_t least_steps = 200, most_batches = 40000;
constexpr double same_within = 1e-3;

// Whole epochs, so that their last steps count as often as they come.
uint64_t steps_for(const step_plan& plan, int64_t group) {
  const uint64_t epoch = plan.steps_per_epoch();
  const uint64_t wanted = (least_steps + epoch - 1) / epoch * epoch;
  return std::min(wanted * 5 / 4 + 5,
                  std::max<uint64_t>(20, most_batches / static_cast<uint64_t>(group)));
}

}  // namespace

flow_times times_of(const service_means& means, uint32_t drafters) {
  const auto always = [](double seconds) { return [seconds](uint64_t) { return seconds; }; };
  // The sum reads each part once and writes one.
  const double parts = static_cast<double>(drafters + 1) / (means.drafters + 1);
  return {always(means.target.seconds),
          always(means.postprocess.seconds),
          always(means.drafter.seconds),
          always(means.reduction.seconds * parts),
          always(means.update.seconds)};
}

split_forecast forecast_of(uint32_t targets,
                           uint32_t drafters,
                           const throughput_basis& basis,
                           const flow_times& times) {
  constexpr int64_t many_epochs = 1 << 20;
  const int64_t group = static_cast<int64_t>(drafters) * basis.accumulation;
  const step_plan plan(basis.rows, many_epochs, drafters, basis.accumulation, 0);
  const pipeline_limits limits =
      derive_limits(targets, 0, drafters, 1, basis.max_in_flight_batches);
  const flow_layout layout{targets, drafters, limits.drafter_batches, limits.capture_slots};
  const uint64_t steps = steps_for(plan, group);
  split_forecast f;
  f.targets = targets;
  f.drafters = drafters;
  f.flow = flow(plan, layout, times, steps);
  f.bounds = bounds_of(plan, layout, times, steps);
  f.tokens_per_s = f.flow.batches_per_s * basis.row_tokens;
  return f;
}

std::vector<split_forecast> forecast_splits(
    uint32_t devices,
    const throughput_basis& basis,
    const std::function<flow_times(uint32_t drafters)>& times) {
  std::vector<split_forecast> splits;
  for (uint32_t drafters = 1; drafters < devices; ++drafters) {
    const uint64_t floor = devices;  // batches: one a drafter, one capture a target
    if (basis.max_in_flight_batches > 0 && basis.max_in_flight_batches < floor) continue;
    splits.push_back(forecast_of(devices - drafters, drafters, basis, times(drafters)));
  }
  return splits;
}

size_t best_of(const std::vector<split_forecast>& splits) {
  size_t best = 0;
  for (size_t i = 1; i < splits.size(); ++i)
    if (splits[i].flow.batches_per_s > splits[best].flow.batches_per_s * (1 + same_within))
      best = i;
  return best;
}

std::string throughput_table(const std::vector<split_forecast>& splits,
                             uint32_t present_targets,
                             uint32_t present_drafters) {
  std::string text = fmt::format("  {:<20} {:>16} {:>10} {:>13} {:>14}  {}\n",
                                 "targets + drafters",
                                 "tokens/s",
                                 "batches/s",
                                 "targets busy",
                                 "drafters busy",
                                 "limited by");
  const size_t best = best_of(splits);
  for (size_t i = 0; i < splits.size(); ++i) {
    const split_forecast& s = splits[i];
    std::string mark = i == best ? "  <- best" : "";
    if (s.targets == present_targets && s.drafters == present_drafters) mark += "  (this layout)";
    text += fmt::format("  {:<20} {:>16} {:>10.3g} {:>13} {:>14}  {}{}\n",
                        fmt::format("{} + {}", s.targets, s.drafters),
                        rate_text(s.tokens_per_s, "tokens"),
                        s.flow.batches_per_s,
                        share_text(s.flow.targets_busy),
                        share_text(s.flow.drafters_busy),
                        flow_limit_text(s.bounds.limit()),
                        mark);
  }
  return text;
}

}  // namespace dflash

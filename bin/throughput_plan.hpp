// What every split of some devices into targets and drafters would reach, worked out from service
// times by the flow of batches (actors/flow_model.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/flow_model.hpp"
#include "actors/service_meter.hpp"
#include "actors/sim_lanes.hpp"

namespace dflash {

/// What does not change from split to split.
struct throughput_basis {
  int64_t rows = 1;                    // of an epoch
  int64_t accumulation = 1;            // batches of a drafter in a step
  double row_tokens = 0;               // real ones, on average
  uint64_t max_in_flight_batches = 0;  // of layout.max_in_flight; 0: default limits
};

struct split_forecast {
  uint32_t targets = 0, drafters = 0;
  flow_forecast flow;
  flow_bounds bounds;
  double tokens_per_s = 0;

  double lost() const { return 1 - flow.batches_per_s / bounds.least(); }  // to limits and steps
};

/// Times of a layout with `drafters` of them: measured ones are constant, the reduction grows with
/// the number of parts that are summed.
flow_times times_of(const service_means& means, uint32_t drafters);

/// Throws error if a budget for hidden states is below what the layout works with.
split_forecast forecast_of(uint32_t targets,
                           uint32_t drafters,
                           const throughput_basis& basis,
                           const flow_times& times);

/// 1 + (devices - 1) to (devices - 1) + 1; `times`: of a number of drafters.
std::vector<split_forecast> forecast_splits(
    uint32_t devices,
    const throughput_basis& basis,
    const std::function<flow_times(uint32_t drafters)>& times);

/// Index of the fastest; of equal ones (within 0.1 %) the one with the fewest drafters.
size_t best_of(const std::vector<split_forecast>& splits);

/// The best one is marked; `present`: that of the layout, too.
std::string throughput_table(const std::vector<split_forecast>& splits,
                             uint32_t present_targets,
                             uint32_t present_drafters);

}  // namespace dflash

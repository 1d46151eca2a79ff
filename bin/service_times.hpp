// Measured service times: into summary.json, out of it, and by a short run of the real lanes.
#pragma once

#include <filesystem>

#include "actors/service_meter.hpp"
#include "bin/training_setup.hpp"
#include "observe/jsonl.hpp"

namespace dflash {

json_object json_of(const service_means& means);

/// Of a finished run's folder; throws error where it has none.
service_means read_service_times(const std::filesystem::path& run);

/// Trains for `seconds` with the lanes of the setup and throws the result away: nothing is saved.
/// All lanes work at once, so that those who share cores are measured as they will be. Captured and
/// kept states are not taken: the target runs.
struct probe_result {
  service_means means;
  double seconds = 0;
  uint64_t batches = 0;
};
probe_result probe(training_setup setup, double seconds);

}  // namespace dflash

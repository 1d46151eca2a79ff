// A run of simulated lanes: the parts of its pipeline from a configuration, without any model.
#pragma once

#include "actors/sim_lanes.hpp"
#include "bin/training_setup.hpp"
#include "config/run_config.hpp"

namespace dflash {

/// What the [sim] section says.
sim_times sim_times_of(const sim_section& sim);

/// The parts with their lanes; `model`, `drafter` and `trainers` stay empty. Throws error for the
/// user's mistakes. Pre-condition: is_simulated(config).
training_setup prepare_simulated(const run_config& config);

/// Its lines of the plan, for people: name and text.
std::vector<std::pair<std::string, std::string>> simulated_lines(const training_setup& setup);

}  // namespace dflash

// Work of lanes, made alike for this process and for one that a node lends.
#pragma once

#include <memory>
#include <vector>

#include "actors/target_forward.hpp"
#include "config/run_config.hpp"
#include "device/stage_timer.hpp"
#include "model/drafter_step.hpp"
#include "model/target.hpp"

namespace dflash {

// Where a lane computes; a lane of another host or a simulated one has nothing here but the CPU.
at::Device device_of_lane(const lane_name& lane);

capture_function capture_by(std::shared_ptr<const target> model,
                            std::vector<int> taps,
                            bool last,
                            std::shared_ptr<stage_timer> stages);

std::shared_ptr<drafter_trainer> make_trainer(const run_config& config,
                                              const drafter_config& drafter,
                                              const drafter_weights& start,
                                              const std::shared_ptr<const target>& model,
                                              compute_dtype dtype,
                                              uint64_t total_steps);

}  // namespace dflash

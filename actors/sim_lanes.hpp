// Simulated lanes: they take time and count bytes as real ones would, and compute nothing, so that
// the real actors can run any layout on two cores. A lane sleeps through its service time; hidden
// states are address space that is reserved in full and never touched, so their bytes count
// everywhere but in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "actors/drafter_work.hpp"
#include "actors/flow_model.hpp"
#include "actors/hidden_shape.hpp"
#include "actors/target_forward.hpp"

namespace dflash {

struct pipeline_parts;

enum class service_law : uint8_t { constant, exponential, uniform };

// Service time of batch (or step) k: `seconds`, or drawn with that mean, keyed by (seed, part, k).
struct service_time {
  double seconds = 0;
  service_law law = service_law::constant;
  uint64_t seed = 0;
  double spread = 0.5;  // uniform: from seconds * (1 - spread) to seconds * (1 + spread)
  uint64_t part = 0;    // tells the times of one k apart

  double of(uint64_t k) const;
};

struct sim_times {
  service_time target, postprocess, drafter;  // per batch
  service_time reduction;                     // per step, where there are several drafters
  service_time update;                        // per step, the same on all drafters
};

// The five with one law, told apart by `part`; seconds are 0.
sim_times sim_times_of(service_law law, uint64_t seed, double spread = 0.5);

// The same as the flow model wants them.
flow_times flow_times_of(const sim_times& times);

// Tensors of the shape on reserved address space [T, Ht], unmapped when the last of them is gone.
// Reading or writing them ends the process: nothing may. Throws error where even address space is
// refused.
std::vector<at::Tensor> reserved_hidden(const hidden_shape& shape);

capture_function sim_capture(service_time service, hidden_shape shape);

// For postprocess: passes everything as finite after its service time.
std::function<bool(const std::vector<at::Tensor>&)> sim_hand_over(service_time service);

// `on_update` (may be empty) is called at the end of each update with its step, in the lane's
// thread. Saving does nothing.
drafter_work sim_drafter(const sim_times& times, std::function<void(uint64_t)> on_update = {});

// Lanes as many as parts.limits has, and what postprocess does.
void add_sim_lanes(pipeline_parts& parts, const sim_times& times);

}  // namespace dflash

// Simulated lanes: they take time and count bytes as real ones would, and compute nothing, so that
// the real actors can run any layout on two cores. A lane sleeps through its service time; hidden
// states are address space that is reserved in full and never touched, so their bytes count
// everywhere but in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "actors/drafter_work.hpp"
#include "actors/hidden_shape.hpp"
#include "actors/target_forward.hpp"

namespace dflash {

// Service time of batch k: `seconds`, or drawn from the exponential distribution with that mean,
// keyed by (seed, k).
struct service_time {
  double seconds = 0;
  bool exponential = false;
  uint64_t seed = 0;

  double of(uint64_t k) const;
};

// Tensors of the shape on reserved address space [T, Ht], unmapped when the last of them is gone.
// Reading or writing them ends the process: nothing may. Throws error where even address space is
// refused.
std::vector<at::Tensor> reserved_hidden(const hidden_shape& shape);

capture_function sim_capture(service_time service, hidden_shape shape);

// For postprocess: passes everything as finite after its service time.
std::function<bool(const std::vector<at::Tensor>&)> sim_hand_over(service_time service);

// A batch takes `batch`, an update (with what comes before it, the reduction) takes `update`.
// `on_update` (may be empty) is called at the end of each update with its step, in the lane's
// thread.
drafter_work sim_drafter(service_time batch,
                         service_time update,
                         std::function<void(uint64_t)> on_update = {});

}  // namespace dflash

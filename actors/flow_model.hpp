// What the pipeline would do if messages cost nothing: the flow of batches through targets,
// postprocess and drafters, worked out from service times alone, by the rules of dispatch_book,
// training_order and commit_book. Knows nothing of actors: bounds, forecasts and tests come from
// here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/step_plan.hpp"

namespace dflash {

// In seconds, of batch k or of step s.
struct flow_times {
  std::function<double(uint64_t k)> target, postprocess, drafter;
  std::function<double(uint64_t s)> reduction, update;
};

struct flow_layout {
  uint32_t targets = 1;          // N
  uint32_t drafters = 1;         // M
  uint32_t drafter_batches = 3;  // limit of a drafter
  uint32_t capture_slots = 2;    // of a target
};

enum class flow_limit : uint8_t { targets, postprocess, drafters };
const char* flow_limit_text(flow_limit what);

struct flow_forecast {
  double batches_per_s = 0;
  double targets_busy = 0, drafters_busy = 0;  // shares of their time
};

// Over the steps [0, steps) of the plan, without the filling of the pipeline (the first fifth).
// `steps` >= 5.
//
// Per batch k, in order of k; L, S: the limits:
//   start of capture = max(lane free, capture of k - 1 started, batch k - L M trained, S slots
//   before on this lane handed on)
//   start of training = max(postprocess of k done, drafter free, step before committed)
//   commit of a step = its last batch trained + reduction (M > 1) + update
flow_forecast flow(const step_plan& plan,
                   const flow_layout& layout,
                   const flow_times& times,
                   uint64_t steps);

// What each stage alone would allow, in batches a second, if the others took no time and no room
// was missing; infinite for a stage that takes none. Limits cannot make a pipeline faster than the
// least of them. Drafters: with their barrier at each step, and with steps that are not full.
struct flow_bounds {
  double targets = 0, postprocess = 0, drafters = 0;

  double least() const;
  flow_limit limit() const;
};

flow_bounds bounds_of(const step_plan& plan,
                      const flow_layout& layout,
                      const flow_times& times,
                      uint64_t steps);

}  // namespace dflash

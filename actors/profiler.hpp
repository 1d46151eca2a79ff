// Collects stage times by actor and name, prints their table each so many steps, writes the trace
// of a window of steps. There is none when both are off. Scheduled; detached if it writes a trace.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>

#include "actors/runtime/metered.hpp"
#include "actors/stage_record.hpp"
#include "device/stage_timer.hpp"

namespace dflash {

struct profiler_options {
  uint64_t interval = 1;  // steps between two tables; 0: none are printed
  std::FILE* stream = stderr;
  std::shared_ptr<stage_record> record;
};

struct profiler_state {
  static inline const char* name = "profiler";
  profiler_options options;
  bool failed = false;  // to write the trace
  stage_timer stages;   // its own
};

profiler_actor spawn_profiler(caf::actor_system& system,
                              runs_as how,
                              actor_identity identity,
                              profiler_options options);

}  // namespace dflash

// Collects stage times by name and prints their table each so many steps. Scheduled; there is none
// when profiling is off.
#pragma once

#include <cstdint>
#include <cstdio>

#include "actors/runtime/metered.hpp"
#include "observe/stage_profile.hpp"

namespace dflash {

struct profiler_options {
  uint64_t interval = 1;  // steps
  std::FILE* stream = stderr;
};

struct profiler_state {
  static inline const char* name = "profiler";
  profiler_options options;
  stage_profile profile;  // since the last table
};

profiler_actor spawn_profiler(caf::actor_system& system,
                              actor_identity identity,
                              profiler_options options);

}  // namespace dflash

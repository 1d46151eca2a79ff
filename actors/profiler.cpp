#include "actors/profiler.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace dflash {

profiler_actor spawn_profiler(caf::actor_system& system,
                              actor_identity identity,
                              profiler_options options) {
  using self_ptr = metered_ptr<profiler_actor, profiler_state>;
  return spawn_metered<profiler_actor, profiler_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options](self_ptr self) -> profiler_actor::behavior_type {
        self->state.options = options;
        return {
            [=](const stage_time& m) {
              self->state.profile.add(stage_name(m.which), std::chrono::nanoseconds(m.ns));
            },
            [=](const step_done& m) {
              profiler_state& s = self->state;
              self->stats().complete();
              if ((m.step + 1) % s.options.interval != 0) return;
              fmt::print(
                  s.options.stream, "\nstages, step {}:\n{}\n", m.step + 1, s.profile.table());
              std::fflush(s.options.stream);
              s.profile.clear();
            },
        };
      });
}

}  // namespace dflash

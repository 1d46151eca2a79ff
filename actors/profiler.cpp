#include "actors/profiler.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "actors/runtime/lane_thread.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<profiler_actor, profiler_state>;

void on_report(self_ptr self, const stage_report& m) {
  profiler_state& s = self->state;
  const auto stage = s.stages.within("book");
  s.options.record->add(m, *self->identity().registry);
  if (m.step == stage_report::none || s.failed) return;
  try {
    s.options.record->write_trace(false);
  } catch (const std::exception& e) {
    s.failed = true;
    spdlog::error("the trace cannot be written, training goes on: {}", e.what());
  }
}

void on_step(self_ptr self, const step_done& m) {
  profiler_state& s = self->state;
  const profiler_options& o = s.options;
  self->stats().complete();
  stage_report own;
  own.actor = self->stats().name;
  own.spans = s.stages.take();
  o.record->add(own, *self->identity().registry);
  if (o.interval == 0 || (m.step + 1) % o.interval != 0) return;
  const auto stage = s.stages.within("table");
  fmt::print(o.stream, "\nstages, step {}:\n{}\n", m.step + 1, o.record->recent().table());
  std::fflush(o.stream);
  o.record->recent().clear();
}

}  // namespace

profiler_actor spawn_profiler(caf::actor_system& system,
                              runs_as how,
                              actor_identity identity,
                              profiler_options options) {
  return spawn_metered<profiler_actor, profiler_state>(
      system,
      how,
      std::move(identity),
      [how, options](self_ptr self) -> profiler_actor::behavior_type {
        if (how == runs_as::detached) set_up_lane_thread("profiler", 1);
        self->state.options = options;
        self->state.stages.turn_on();
        return {
            [=](const stage_report& m) { on_report(self, m); },
            [=](const step_done& m) { on_step(self, m); },
        };
      });
}

}  // namespace dflash

#include "actors/checkpointer.hpp"

#include <utility>

#include "actors/runtime/lane_thread.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<checkpointer_actor, checkpointer_state>;

void write(self_ptr self, const snapshot_taken& m) {
  checkpointer_state& s = self->state;
  self->stats().set_activity(activity::computing);
  self->fault("writes");
  save_done done;
  done.steps = m.steps;
  done.copied_ns = m.copied_ns;
  const int64_t began = now_ns();
  {
    const auto stage = s.stages.within("save");
    try {
      (*m.write)();
      done.good = true;
    } catch (const std::exception& e) {
      done.error = e.what();
    }
  }
  done.written_ns = now_ns() - began;
  s.stages.report(self->stats(), stage_report::none);
  if (done.good) self->stats().complete();
  self->send(s.links->coordinator, std::move(done));
  self->stats().set_activity(activity::idle);
}

void record(self_ptr self, const evaluation_record& m) {
  checkpointer_state& s = self->state;
  self->fault("records");
  record_done done;
  const auto stage = s.stages.within("record");
  try {
    if (s.options.record) s.options.record(m);
  } catch (const std::exception& e) {
    done.error = e.what();
  }
  self->send(s.links->coordinator, std::move(done));
}

}  // namespace

checkpointer_actor spawn_checkpointer(caf::actor_system& system,
                                      runs_as how,
                                      actor_identity identity,
                                      checkpointer_options options) {
  return spawn_metered<checkpointer_actor, checkpointer_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> checkpointer_actor::behavior_type {
        if (how == runs_as::detached) set_up_lane_thread("checkpointer", 1);
        self->state.options = options;
        self->state.stages = stage_sink(options.profile, self->stats());
        return {
            [=](const start_run& m) {
              self->state.links = m.links;
              self->state.stages.use(m.links->profiler);
            },
            [=](const snapshot_taken& m) { write(self, m); },
            [=](const evaluation_record& m) { record(self, m); },
        };
      });
}

}  // namespace dflash

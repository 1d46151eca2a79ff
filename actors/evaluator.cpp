#include "actors/evaluator.hpp"

#include <utility>

#include "actors/runtime/lane_thread.hpp"
#include "config/error.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<evaluator_actor, evaluator_state>;

void report(self_ptr self, std::shared_ptr<const evaluation> result, std::string why) {
  evaluator_state& s = self->state;
  self->send(s.links->coordinator, evaluated{*s.steps, std::move(result), std::move(why)});
  s.steps.reset();
  self->stats().set_activity(activity::idle);
}

void begin(self_ptr self, const evaluate_request& m) {
  evaluator_state& s = self->state;
  self->stats().set_activity(activity::computing);
  s.steps = m.steps;
  self->fault("begins");
  const auto stage = s.stages.within("evaluate");
  try {
    if (!s.work) s.work = s.options.make();
    s.work->begin(m.steps);
  } catch (const error& e) {  // another attempt would find the same
    report(self, nullptr, e.what());
    return;
  }
  self->send(self, next_atom_v);
}

void go_on(self_ptr self) {
  evaluator_state& s = self->state;
  if (!s.steps) return;
  self->fault("evaluates");
  std::optional<evaluation> result;
  {
    const auto stage = s.stages.within("evaluate");
    result = s.work->go_on();
  }
  self->stats().complete();
  if (!result) {
    self->send(self, next_atom_v);
    return;
  }
  s.stages.report(self->stats(), stage_report::none);
  report(self, std::make_shared<const evaluation>(*result), {});
}

}  // namespace

evaluator_actor spawn_evaluator(caf::actor_system& system,
                                runs_as how,
                                actor_identity identity,
                                evaluator_options options) {
  return spawn_metered<evaluator_actor, evaluator_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> evaluator_actor::behavior_type {
        if (how == runs_as::detached) set_up_lane_thread("evaluator", options.threads);
        self->state.options = options;
        self->state.stages = stage_sink(options.profile, self->stats());
        return {
            [=](const start_run& m) {
              self->state.links = m.links;
              self->state.stages.use(m.links->profiler);
            },
            [=](const evaluate_request& m) { begin(self, m); },
            [=](next_atom) { go_on(self); },
        };
      });
}

}  // namespace dflash

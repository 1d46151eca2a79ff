#include "actors/inspector.hpp"

#include <chrono>
#include <utility>

#include "actors/run_watch.hpp"
#include "actors/runtime/lane_thread.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<run_inspector_actor, inspector_state>;

constexpr std::chrono::seconds describe_timeout{2};

system_report report_of(self_ptr self) {
  inspector_state& s = self->state;
  const auto stage = s.stages.within("look");
  system_report report;
  report.run = s.options.run;
  report.node = node_name();
  report.uptime_ns = now_ns() - s.born_ns;
  report.steps = s.options.steps ? s.options.steps->load() : 0;
  report.total_steps = s.options.total_steps;
  report.rows = self->identity().registry->rows();
  return report;
}

// The dispatcher is asked past its queue; one that is stuck or dead is shown as such.
caf::result<std::string> dump(self_ptr self) {
  inspector_state& s = self->state;
  const auto stage = s.stages.within("dump");
  self->stats().complete();
  const std::string text = s.options.details ? s.options.details() : std::string();
  if (!s.links || !s.links->dispatcher) return text + "dispatcher: down\n";
  auto promise = self->make_response_promise<std::string>();
  self->request<caf::message_priority::high>(
          s.links->dispatcher, caf::duration{describe_timeout}, describe_atom_v)
      .then(
          [promise, text](const std::string& books) mutable {
            promise.deliver(text + "dispatcher:\n" + books);
          },
          [promise, text](const caf::error&) mutable {
            promise.deliver(text + "dispatcher: no answer, it is stuck or just died\n");
          });
  return promise;
}

}  // namespace

run_inspector_actor spawn_inspector(caf::actor_system& system,
                                    runs_as how,
                                    actor_identity identity,
                                    inspector_options options) {
  return spawn_metered<run_inspector_actor, inspector_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> run_inspector_actor::behavior_type {
        if (how == runs_as::detached) set_up_lane_thread("inspector", 1);
        self->state.options = options;
        self->state.stages = stage_sink(options.profile, self->stats());
        return {
            [=](const start_run& m) {
              self->state.links = m.links;
              self->state.stages.use(m.links->profiler);
            },
            [=](inspect_atom) {
              self->stats().complete();
              self->state.stages.report(self->stats(), stage_report::none);  // of the looks before
              return report_of(self);
            },
            [=](dump_atom) { return dump(self); },
            [=](offer_atom what, const std::string& node) -> caf::result<std::string> {
              const node_door_actor& door = self->state.options.door;
              if (!door) return caf::make_error(caf::sec::invalid_argument, "no node is expected");
              return self->delegate(door, what, node);
            },
        };
      });
}

}  // namespace dflash

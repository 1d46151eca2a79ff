#include "actors/inspector.hpp"

#include <utility>

namespace dflash {

inspector_actor spawn_inspector(caf::actor_system& system,
                                actor_identity identity,
                                inspector_options options) {
  using self_ptr = metered_ptr<inspector_actor, inspector_state>;
  return spawn_metered<inspector_actor, inspector_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options = std::move(options)](self_ptr self) -> inspector_actor::behavior_type {
        self->state.options = options;
        return {
            [=](inspect_atom) {
              const inspector_state& s = self->state;
              self->stats().complete();
              system_report report;
              report.run = s.options.run;
              report.uptime_ns = now_ns() - s.born_ns;
              report.steps = s.options.steps ? s.options.steps->load() : 0;
              report.total_steps = s.options.total_steps;
              report.rows = self->identity().registry->rows();
              return report;
            },
        };
      });
}

}  // namespace dflash

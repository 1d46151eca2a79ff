#include "actors/coordinator.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "actors/coordinator_parts.hpp"

namespace dflash {

namespace coordination {

namespace {

constexpr uint32_t last_stage = 5;

// Ends the coordinator once everyone else is gone.
void conclude(self_ptr self) {
  coordinator_state& s = self->state;
  caf::anon_send(s.options.observer, s.outcome);
  self->quit();
}

void on_stop(self_ptr self) {
  coordinator_state& s = self->state;
  if (s.stopping || s.shutdown_stage) return;
  s.stopping = true;
  if (s.going_back) return;  // after one step from the checkpoint
  if (s.book->finished()) {  // the last save or evaluation is under way
    end_if_done(self);
    return;
  }
  // Not a step that an evaluation may have ruled out.
  const bool one_more = s.saves->runs_in_any_case(s.book->steps() + 1);
  const uint64_t end_k = s.book->end_at(s.book->steps() + (one_more ? 1 : 0));
  spdlog::info("stopping after step {}", s.book->last_step());
  s.stop_k = end_k;
  self->send(s.links->dispatcher, stop_at{end_k});
  try_go(self);
  end_if_done(self);
}

void on_start(self_ptr self, const start_run& m) {
  coordinator_state& s = self->state;
  for (const group_id id : groups_of(*m.links)) {
    const restart_options again =
        s.options.restart_of ? s.options.restart_of(id) : s.options.restart;
    s.groups.push_back({id, restart_policy(again)});
    watch_group(self, *m.links, s.groups.size() - 1);
  }
  set_links(self, m.links);
  begin_watch(self);
  note_evaluations(self, 0);
  apply_patience(self);
  try_evaluation(self);
  end_if_done(self);
}

void on_deadline(self_ptr self, const stage_deadline& m) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage != m.stage) return;
  for (const supervised& child : s.children)
    if (child.stage == m.stage && child.alive) {
      spdlog::warn("{} does not end: goes on without waiting for it", child.name);
      s.outcome.stuck.push_back(child.name);
    }
  enter_stage(self, m.stage + 1);
}

}  // namespace

void enter_stage(self_ptr self, uint32_t stage) {
  coordinator_state& s = self->state;
  while (stage <= last_stage && s.stage_is_over(stage)) ++stage;
  s.shutdown_stage = stage;
  if (stage > last_stage) {
    conclude(self);
    return;
  }
  for (const supervised& child : s.children)
    if (child.stage == stage && child.alive)
      caf::anon_send_exit(child.actor, caf::exit_reason::user_shutdown);
  self->delayed_send(self, s.options.stage_deadline, stage_deadline{stage});
}

void shut_down(self_ptr self, run_status status, std::string reason) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage) return;
  s.outcome.status = status;
  s.outcome.steps = s.book->steps();
  s.outcome.reason = std::move(reason);
  if (s.options.give_up_evaluation) s.options.give_up_evaluation();
  enter_stage(self, 0);
}

}  // namespace coordination

namespace {

constexpr int64_t stall_factor = 20;  // times the slowest step

}  // namespace

bool coordinator_state::stage_is_over(uint32_t stage) const {
  return std::none_of(children.begin(), children.end(), [&](const supervised& child) {
    return child.stage == stage && child.alive;
  });
}

bool coordinator_state::is_retired(part what) const {
  return std::any_of(groups.begin(), groups.end(), [&](const supervised_group& g) {
    return g.id.what == what && g.now == supervised_group::condition::retired;
  });
}

size_t coordinator_state::group_of(part what, uint32_t index) const {
  const auto found = std::find_if(groups.begin(), groups.end(), [&](const supervised_group& g) {
    return g.id.what == what && g.id.index == index;
  });
  return static_cast<size_t>(found - groups.begin());
}

size_t coordinator_state::targets_left() const {
  return static_cast<size_t>(
      std::count_if(groups.begin(), groups.end(), [](const supervised_group& g) {
        return g.id.what == part::target && g.now != supervised_group::condition::retired;
      }));
}

std::chrono::nanoseconds coordinator_state::stall_limit() const {
  return std::max<std::chrono::nanoseconds>(
      options.stall_floor, std::chrono::nanoseconds(stall_factor * slowest_step_ns));
}

coordinator_actor spawn_coordinator(caf::actor_system& system,
                                    actor_identity identity,
                                    coordinator_options options) {
  return spawn_metered<coordinator_actor, coordinator_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options =
           std::move(options)](coordination::self_ptr self) -> coordinator_actor::behavior_type {
        using namespace coordination;
        coordinator_state& s = self->state;
        s.options = options;
        s.book.emplace(*options.commits);
        s.replicas.emplace(options.commits->drafters);
        for (const uint64_t k : options.dropped) s.book->dropped(k);
        s.outcome.steps = options.commits->first_step;
        s.outcome.saved_step = options.saved_step;
        s.saves.emplace(options.saves);
        s.stages = stage_sink(options.profile, self->stats());
        s.outcome.evaluations = std::make_shared<const evaluation_history>(s.saves->history());
        self->set_down_handler([self](const caf::down_msg& m) { on_down(self, m); });
        return {
            [=](const start_run& m) { on_start(self, m); },
            [=](const stop_request&) { on_stop(self); },
            [=](const step_reduced& m) {
              const auto stage = self->state.stages.within("step reduced");
              on_reduced(self, m);
            },
            [=](const step_committed& m) {
              const auto stage = self->state.stages.within("step committed");
              on_committed(self, m);
            },
            [=](const replica_held& m) {
              const auto stage = self->state.stages.within("replicas");
              on_held(self, m);
            },
            [=](const replica_ready& m) {
              const auto stage = self->state.stages.within("replicas");
              on_ready(self, m);
            },
            [=](const batch_dropped& m) { self->state.book->dropped(m.k); },
            [=](const give_up& m) { shut_down(self, run_status::failed, m.reason); },
            [=](const snapshot_made& m) {
              const auto stage = self->state.stages.within("saves");
              self->state.saves->copied(m.steps);
              try_go(self);
            },
            [=](const save_done& m) {
              const auto stage = self->state.stages.within("saves");
              on_saved(self, m);
            },
            [=](const evaluated& m) {
              const auto stage = self->state.stages.within("evaluations");
              on_evaluated(self, m);
            },
            [=](const record_done& m) {
              const auto stage = self->state.stages.within("evaluations");
              on_recorded(self, m);
            },
            [=](const step_noted& m) {
              const auto stage = self->state.stages.within("step noted");
              on_noted(self, m);
            },
            [=](const evaluation_noted& m) {
              const auto stage = self->state.stages.within("evaluations");
              on_evaluation_noted(self, m);
            },
            [=](const restart_group& m) {
              const auto stage = self->state.stages.within("restart");
              on_restart(self, m);
            },
            [=](watch_tick) {
              const auto stage = self->state.stages.within("watch");
              on_tick(self);
            },
            [=](const stage_deadline& m) { on_deadline(self, m); },
        };
      });
}

}  // namespace dflash

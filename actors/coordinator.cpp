#include "actors/coordinator.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace dflash {

namespace {

using self_ptr = metered_ptr<coordinator_actor, coordinator_state>;

constexpr uint32_t last_stage = 5;
constexpr std::chrono::seconds flush_timeout{10};

void enter_stage(self_ptr self, uint32_t stage);

// Ends the coordinator once everyone else is gone.
void conclude(self_ptr self) {
  coordinator_state& s = self->state;
  caf::anon_send(s.options.observer, s.outcome);
  self->quit();
}

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

void shut_down(self_ptr self, run_status status, std::string reason = {}) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage) return;
  s.outcome.status = status;
  s.outcome.steps = s.book->steps();
  s.outcome.reason = std::move(reason);
  enter_stage(self, 0);
}

void send_go(self_ptr self) {
  coordinator_state& s = self->state;
  s.go_pending = false;
  for (const drafter_actor& drafter : s.links->drafters)
    self->send(drafter, step_go{s.book->steps()});
}

void on_reduced(self_ptr self, const step_reduced& m) {
  coordinator_state& s = self->state;
  // Batches that were in flight at a stop may fill another step: it never goes.
  if (s.book->finished() || !s.book->reduced(m)) return;
  if (s.flushing)
    s.go_pending = true;
  else
    send_go(self);
}

void send_save(self_ptr self, const save_request& request) {
  coordinator_state& s = self->state;
  s.flushing = false;
  self->send(s.links->drafters.at(0), request);
  if (s.go_pending) send_go(self);
}

// metrics.jsonl must reach as far as the checkpoint, so metrics writes first; the next step's go
// waits for that, so that drafter 0 gets the request before it updates again.
void begin_save(self_ptr self) {
  coordinator_state& s = self->state;
  s.flushing = true;
  const save_request request = s.book->make_save_request();
  self->request(s.links->metrics, caf::duration{flush_timeout}, flush_metrics{request.steps})
      .then([=](uint64_t) { send_save(self, request); },
            [=](const caf::error&) {
              spdlog::error(
                  "metrics did not answer before a checkpoint: metrics.jsonl may lack steps");
              send_save(self, request);
            });
}

void on_committed(self_ptr self, const step_committed& m) {
  coordinator_state& s = self->state;
  const auto done = s.book->committed(m);
  if (!done) return;
  s.outcome.steps = s.book->steps();
  if (done->skipped)
    spdlog::warn("step {} skipped: its weight sum is 0 or its gradient is not finite", done->step);
  self->send(s.links->dispatcher, *done);
  self->send(s.links->metrics, *done);
  if (s.links->profiler) self->send(s.links->profiler, *done);
  if (s.book->save_is_due()) begin_save(self);
}

void on_saved(self_ptr self, const save_done& m) {
  coordinator_state& s = self->state;
  if (m.good) {
    s.outcome.saved_step = m.steps;
  } else {
    spdlog::error("checkpoint at step {} failed, older ones stand: {}", m.steps, m.error);
  }
  if (!s.book->finished() || m.steps != s.book->steps()) return;
  if (!m.good)
    shut_down(self, run_status::failed, "the last checkpoint could not be saved: " + m.error);
  else
    shut_down(self, s.book->complete() ? run_status::completed : run_status::stopped);
}

void on_stop(self_ptr self) {
  coordinator_state& s = self->state;
  if (s.stopping || s.shutdown_stage) return;
  s.stopping = true;
  const bool was_finished = s.book->finished();
  const uint64_t end_k = s.book->stop();
  if (was_finished) return;  // the last save is under way
  spdlog::info("stopping after step {}", s.book->last_step());
  self->send(s.links->dispatcher, stop_at{end_k});
}

void on_down(self_ptr self, const caf::down_msg& m) {
  coordinator_state& s = self->state;
  const auto child = std::find_if(s.children.begin(), s.children.end(), [&](const supervised& c) {
    return c.alive && caf::actor_cast<caf::actor_addr>(c.actor) == m.source;
  });
  if (child == s.children.end()) return;
  child->alive = false;
  if (s.shutdown_stage) {
    if (s.stage_is_over(*s.shutdown_stage)) enter_stage(self, *s.shutdown_stage + 1);
    return;
  }
  std::string why = self->identity().registry->failure(child->name);
  if (why.empty()) why = caf::to_string(m.reason);
  spdlog::error("{} died: {}", child->name, why);
  shut_down(self, run_status::failed, child->name + ": " + why);
}

void on_start(self_ptr self, const start_run& m) {
  coordinator_state& s = self->state;
  s.links = m.links;
  s.children = coordinator_state::stages_of(*m.links);
  for (const supervised& child : s.children)
    self->monitor(caf::actor_cast<caf::actor_addr>(child.actor));
  if (s.book->finished()) shut_down(self, run_status::completed);
}

}  // namespace

std::vector<supervised> coordinator_state::stages_of(const pipeline_links& links) {
  std::vector<supervised> children;
  const auto add = [&](uint32_t stage, std::string who, const auto& handle) {
    if (handle)
      children.push_back({std::move(who), caf::actor_cast<caf::strong_actor_ptr>(handle), stage});
  };
  add(0, "loader", links.loader);
  add(0, "dispatcher", links.dispatcher);
  for (size_t i = 0; i < links.targets.size(); ++i)
    add(1, fmt::format("target_forward {}", i), links.targets[i]);
  for (size_t i = 0; i < links.postprocess.size(); ++i)
    add(2, fmt::format("postprocess {}", i), links.postprocess[i]);
  for (size_t i = 0; i < links.drafters.size(); ++i)
    add(3, fmt::format("drafter_train {}", i), links.drafters[i]);
  add(4, "metrics", links.metrics);
  add(4, "profiler", links.profiler);
  add(5, "inspector", links.inspector);
  return children;
}

bool coordinator_state::stage_is_over(uint32_t stage) const {
  return std::none_of(children.begin(), children.end(), [&](const supervised& child) {
    return child.stage == stage && child.alive;
  });
}

coordinator_actor spawn_coordinator(caf::actor_system& system,
                                    actor_identity identity,
                                    coordinator_options options) {
  return spawn_metered<coordinator_actor, coordinator_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options = std::move(options)](self_ptr self) -> coordinator_actor::behavior_type {
        coordinator_state& s = self->state;
        s.options = options;
        s.book.emplace(*options.commits);
        s.book->set_skipped(options.skipped_steps);
        for (const uint64_t k : options.dropped) s.book->dropped(k);
        s.outcome.steps = options.commits->first_step;
        s.outcome.saved_step = options.saved_step;
        self->set_down_handler([self](const caf::down_msg& m) { on_down(self, m); });
        return {
            [=](const start_run& m) { on_start(self, m); },
            [=](const stop_request&) { on_stop(self); },
            [=](const step_reduced& m) { on_reduced(self, m); },
            [=](const step_committed& m) { on_committed(self, m); },
            [=](const batch_dropped& m) { self->state.book->dropped(m.k); },
            [=](const save_done& m) { on_saved(self, m); },
            [=](const stage_deadline& m) {
              if (self->state.shutdown_stage != m.stage) return;
              for (const supervised& child : self->state.children)
                if (child.stage == m.stage && child.alive)
                  spdlog::warn("{} does not end: goes on without waiting for it", child.name);
              enter_stage(self, m.stage + 1);
            },
        };
      });
}

}  // namespace dflash

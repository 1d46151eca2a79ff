#include "actors/coordinator.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "actors/runtime/mailbox_rows.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<coordinator_actor, coordinator_state>;

constexpr uint32_t last_stage = 5;
constexpr std::chrono::seconds flush_timeout{10};
constexpr std::chrono::seconds describe_timeout{2};
constexpr int64_t stall_factor = 20;  // times the slowest step
constexpr uint32_t ticks_to_stall = 8;

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
    self->send(drafter, step_go{s.book->steps(), s.noted_k});
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
  s.saving = true;
  self->send(s.links->drafters.at(0), request);
  if (s.go_pending) send_go(self);
}

// metrics.jsonl must reach as far as the checkpoint, so metrics writes first; the next step's go
// waits for that, so that drafter 0 gets the request before it updates again. A metrics that dies
// is asked again in its next life.
void begin_save(self_ptr self) {
  coordinator_state& s = self->state;
  s.flushing = true;
  s.flush_again = !s.links->metrics;
  const save_request request = s.book->make_save_request();
  const auto without = [=] {
    spdlog::error("metrics did not answer before a checkpoint: metrics.jsonl may lack steps");
    send_save(self, request);
  };
  if (s.is_retired(part::metrics)) without();
  if (!s.links->metrics) return;
  const uint32_t attempt = ++s.flush_attempt;
  self->request(s.links->metrics, caf::duration{flush_timeout}, flush_metrics{request.steps})
      .then(
          [=](uint64_t) {
            if (self->state.flush_attempt == attempt) send_save(self, request);
          },
          [=](const caf::error& e) {
            if (self->state.flush_attempt == attempt && e == caf::sec::request_timeout) without();
          });
}

void on_noted(self_ptr self, const step_noted& m) {
  coordinator_state& s = self->state;
  for (; !s.unnoted.empty() && s.unnoted.front().step <= m.step; s.unnoted.pop_front())
    s.noted_k = s.unnoted.front().end_k;
}

// From the first commit on, counted in ticks: a process that was stopped and goes on has had one.
void note_commit(self_ptr self) {
  coordinator_state& s = self->state;
  const int64_t now = now_ns();
  const int64_t before = std::exchange(s.last_commit_ns, now);
  if (before > 0)
    s.slowest_step_ns = std::max(s.slowest_step_ns, now - before);
  else
    self->delayed_send(self, s.stall_limit() / ticks_to_stall, watch_tick{});
}

void on_committed(self_ptr self, const step_committed& m) {
  coordinator_state& s = self->state;
  const auto done = s.book->committed(m);
  if (!done) return;
  s.outcome.steps = s.book->steps();
  if (done->skipped)
    spdlog::warn("step {} skipped: its weight sum is 0 or its gradient is not finite", done->step);
  note_commit(self);
  self->send(s.links->dispatcher, *done);
  self->send(s.links->profiler, *done);
  if (s.is_retired(part::metrics)) {
    s.noted_k = done->end_k;
  } else {
    s.unnoted.push_back(*done);
    self->send(s.links->metrics, *done);
  }
  if (s.book->save_is_due()) begin_save(self);
}

void on_saved(self_ptr self, const save_done& m) {
  coordinator_state& s = self->state;
  s.saving = false;
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
  s.stop_k = end_k;
  self->send(s.links->dispatcher, stop_at{end_k});
}

void set_links(self_ptr self, std::shared_ptr<const pipeline_links> links) {
  coordinator_state& s = self->state;
  s.links = std::move(links);
  send_links(s.links);
  if (s.options.on_links) s.options.on_links(s.links);
}

// All members of a group are in the links: watch them from now on.
void watch_group(self_ptr self, const pipeline_links& links, size_t index) {
  coordinator_state& s = self->state;
  for (group_member& m : members_of(links, s.groups[index].id)) {
    self->monitor(caf::actor_cast<caf::actor_addr>(m.actor));
    auto child = std::find_if(s.children.begin(), s.children.end(), [&](const supervised& c) {
      return c.name == m.name;
    });
    if (child == s.children.end()) child = s.children.insert(child, supervised{});
    *child = {std::move(m.name), std::move(m.actor), m.stage, index, true};
  }
}

void retire(self_ptr self, supervised_group& group) {
  coordinator_state& s = self->state;
  group.now = supervised_group::condition::retired;
  const bool goes_on =
      group.id.what == part::target ? s.targets_left() > 0 : !is_upstream(group.id.what);
  if (!goes_on) {
    shut_down(self, run_status::failed, group.last_error);
    return;
  }
  spdlog::error("{}: {} failures in a row, retired; the run goes on without it ({} of {} targets)",
                group.last_error,
                group.policy.failures_in_a_row(),
                s.targets_left(),
                s.links->targets.size());
  if (group.id.what != part::metrics) return;
  if (!s.unnoted.empty()) s.noted_k = s.unnoted.back().end_k;
  s.unnoted.clear();
  if (s.flushing) begin_save(self);
}

// Those that end and start again together with a group.
std::vector<size_t> together_with(const coordinator_state& s, size_t index) {
  if (s.groups[index].id.what != part::dispatcher) return {index};
  std::vector<size_t> groups;
  for (size_t i = 0; i < s.groups.size(); ++i)
    if (is_upstream(s.groups[i].id.what) && s.groups[i].now != supervised_group::condition::retired)
      groups.push_back(i);
  return groups;
}

// A group failed and none of it is alive: it starts again later, or never.
void restart_or_retire(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  supervised_group& group = s.groups[index];
  mailbox_registry& registry = *self->identity().registry;
  uint64_t completed = 0;
  for (const supervised& child : s.children)
    if (child.group == index) completed += registry.completed(child.name);
  const auto delay = group.policy.failed(completed);
  for (const size_t i : together_with(s, index))
    for (const supervised& child : s.children)
      if (child.group == i)
        registry.bury(child.name, delay ? activity::restarting : activity::retired);
  if (!delay) {
    retire(self, group);
    return;
  }
  group.now = supervised_group::condition::waiting;
  self->delayed_send(self, *delay, restart_group{static_cast<uint32_t>(index)});
}

void group_is_down(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  if (s.groups[index].id.what == part::metrics && s.flushing) {
    ++s.flush_attempt;
    s.flush_again = true;
  }
  auto links = std::make_shared<pipeline_links>(*s.links);
  for (const size_t i : together_with(s, index)) clear_group(*links, s.groups[i].id);
  set_links(self, std::move(links));
  restart_or_retire(self, index);
}

void on_restart(self_ptr self, const restart_group& m) {
  coordinator_state& s = self->state;
  supervised_group& group = s.groups.at(m.group);
  if (s.shutdown_stage || group.now != supervised_group::condition::waiting) return;
  auto links = std::make_shared<pipeline_links>(*s.links);
  const auto groups = together_with(s, m.group);
  try {
    for (const size_t i : groups) s.options.spawn_group(*links, s.groups[i].id, s.book->next_k());
  } catch (const std::exception& e) {
    group.last_error = e.what();
    spdlog::error("restart failed: {}", group.last_error);
    restart_or_retire(self, m.group);
    return;
  }
  for (const size_t i : groups) {
    s.groups[i].now = supervised_group::condition::running;
    watch_group(self, *links, i);
  }
  set_links(self, std::move(links));
  if (group.id.what == part::dispatcher) {
    s.rebuilding = false;
    if (s.stop_k) self->send(s.links->dispatcher, stop_at{*s.stop_k});
  }
  if (group.id.what != part::metrics) return;
  for (const step_done& done : s.unnoted) self->send(s.links->metrics, done);
  if (std::exchange(s.flush_again, false)) begin_save(self);
}

// Ends what is left of a group, and with the dispatcher all that work for it.
void end_group(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  for (const size_t i : together_with(s, index)) {
    s.groups[i].now = supervised_group::condition::ending;
    for (const supervised& child : s.children)
      if (child.group == i && child.alive) caf::anon_send_exit(child.actor, caf::exit_reason::kill);
  }
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
  size_t index = child->group;
  supervised_group& group = s.groups[index];
  if (group.now == supervised_group::condition::running) {
    std::string why = self->identity().registry->failure(child->name);
    if (why.empty()) why = caf::to_string(m.reason);
    spdlog::error("{} died: {}", child->name, why);
    group.last_error = child->name + ": " + why;
    if (!may_restart(group.id.what)) {
      shut_down(self, run_status::failed, group.last_error);
      return;
    }
    s.rebuilding = s.rebuilding || group.id.what == part::dispatcher;
    end_group(self, index);
  }
  if (s.rebuilding && is_upstream(group.id.what)) index = s.dispatcher_group();
  const auto groups = together_with(s, index);
  const bool all_gone = std::none_of(s.children.begin(), s.children.end(), [&](const auto& c) {
    return c.alive && std::count(groups.begin(), groups.end(), c.group) > 0;
  });
  if (all_gone) group_is_down(self, index);
}

void on_start(self_ptr self, const start_run& m) {
  coordinator_state& s = self->state;
  for (const group_id id : groups_of(*m.links)) {
    s.groups.push_back({id, restart_policy(s.options.restart)});
    watch_group(self, *m.links, s.groups.size() - 1);
  }
  set_links(self, m.links);
  if (s.book->finished()) shut_down(self, run_status::completed);
}

// The table of all actors to the log, then the end.
void on_stall(self_ptr self) {
  coordinator_state& s = self->state;
  const auto conclude_with = [self](const std::string& credits) {
    coordinator_state& state = self->state;
    const auto limit = duration_text(state.stall_limit());
    const auto rows = rows_of(self->identity().registry->rows());
    spdlog::error(
        "nothing was committed for {}; all actors:\n{}{}", limit, mailbox_table(rows), credits);
    shut_down(self,
              run_status::failed,
              fmt::format("nothing was committed for {}, the slowest step before took {}; the log "
                          "has the table of all actors",
                          limit,
                          duration_text(std::chrono::nanoseconds(state.slowest_step_ns))));
  };
  self->request(s.links->dispatcher, caf::duration{describe_timeout}, describe_atom_v)
      .then(conclude_with, [=](const caf::error&) { conclude_with("the dispatcher is stuck\n"); });
}

void on_tick(self_ptr self) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage) return;
  // A checkpoint takes as long as its disk needs.
  const bool quiet = s.book->steps() == s.steps_at_tick && !s.saving;
  s.steps_at_tick = s.book->steps();
  s.quiet_ticks = quiet ? s.quiet_ticks + 1 : 0;
  if (s.quiet_ticks >= ticks_to_stall)
    on_stall(self);
  else
    self->delayed_send(self, s.stall_limit() / ticks_to_stall, watch_tick{});
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

size_t coordinator_state::dispatcher_group() const {
  const auto found = std::find_if(groups.begin(), groups.end(), [](const supervised_group& g) {
    return g.id.what == part::dispatcher;
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
            [=](const give_up& m) { shut_down(self, run_status::failed, m.reason); },
            [=](const save_done& m) { on_saved(self, m); },
            [=](const step_noted& m) { on_noted(self, m); },
            [=](const restart_group& m) { on_restart(self, m); },
            [=](watch_tick) { on_tick(self); },
            [=](const stage_deadline& m) { on_deadline(self, m); },
        };
      });
}

}  // namespace dflash

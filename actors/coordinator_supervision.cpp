#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "actors/coordinator_parts.hpp"

namespace dflash::coordination {

void set_links(self_ptr self, std::shared_ptr<const pipeline_links> links) {
  coordinator_state& s = self->state;
  s.links = std::move(links);
  s.stages.use(s.links->profiler);
  // Before any actor works with them: who looks from outside must not be late.
  if (s.options.on_links) s.options.on_links(s.links);
  send_links(s.links);
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

namespace {

void retire(self_ptr self, supervised_group& group) {
  coordinator_state& s = self->state;
  group.now = supervised_group::condition::retired;
  const bool goes_on = group.id.what == part::target
                           ? s.targets_left() > 0
                           : !is_upstream(group.id.what) && group.id.what != part::drafter;
  if (!goes_on) {
    shut_down(self, run_status::failed, group.last_error);
    return;
  }
  spdlog::error("{}: {} failures in a row, retired; the run goes on without it ({} of {} targets)",
                group.last_error,
                group.policy.failures_in_a_row(),
                s.targets_left(),
                s.links->targets.size());
  if (group.id.what == part::evaluator) lose_evaluator(self);
  if (group.id.what != part::metrics) return;
  s.unnoted.clear();
  if (s.saves->is_flushing()) flush_before_save(self);
  end_if_done(self);
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

// The handles of a group that is gone.
void clear_links(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  auto links = std::make_shared<pipeline_links>(*s.links);
  for (const size_t i : together_with(s, index)) clear_group(*links, s.groups[i].id);
  set_links(self, std::move(links));
}

void bury(self_ptr self, size_t index, activity what) {
  const coordinator_state& s = self->state;
  for (const size_t i : together_with(s, index))
    for (const supervised& child : s.children)
      if (child.group == i) self->identity().registry->bury(child.name, what);
}

void group_is_down(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  supervised_group& group = s.groups[index];
  const part what = group.id.what;
  if (what == part::metrics && s.saves->is_flushing()) {
    ++s.flush_attempt;
    s.flush_again = true;
  }
  if (what == part::evaluator) s.saves->evaluator_died();
  clear_links(self, index);
  if (what == part::checkpointer) {
    s.records = 0;  // the next evaluation's has them all
    lose_save(self, group.last_error);
    if (s.going_back) advance_replicas(self);
  }
  if (s.shutdown_stage) return;
  if (std::exchange(group.blameless, false)) {
    bury(self, index, activity::restarting);
    group.now = supervised_group::condition::waiting;
    self->send(self, restart_group{static_cast<uint32_t>(index)});
  } else {
    restart_or_retire(self, index);
  }
  if (what == part::drafter && !s.shutdown_stage) replica_lost(self, group.id.index);
}

// While the run goes back to a checkpoint.
void upstream_ended(self_ptr self) {
  coordinator_state& s = self->state;
  if (!upstream_is_gone(s)) return;
  const size_t dispatcher = s.group_of(part::dispatcher);
  clear_links(self, dispatcher);
  bury(self, dispatcher, activity::restarting);
  advance_replicas(self);
}

}  // namespace

bool upstream_is_gone(const coordinator_state& s) {
  return std::none_of(s.children.begin(), s.children.end(), [&](const supervised& child) {
    return child.alive && is_upstream(s.groups[child.group].id.what);
  });
}

next_life life_now(const coordinator_state& s) {
  next_life next;
  next.next_k = s.book->next_k();
  next.dropped = s.book->dropped();
  return next;
}

// A group failed and none of it is alive: it starts again later, or never.
void restart_or_retire(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  supervised_group& group = s.groups[index];
  uint64_t completed = 0;
  // A drafter gets on with the run: what it does again after each death is no success.
  if (group.id.what == part::drafter) completed = s.book->most_steps();
  for (const supervised& child : s.children)
    if (child.group == index) completed += self->identity().registry->completed(child.name);
  auto delay = group.policy.failed(completed);
  // A run without checkpoints is worth little: it is tried again and again.
  if (group.id.what == part::checkpointer && !delay) delay = s.options.restart.longest_delay;
  bury(self, index, delay ? activity::restarting : activity::retired);
  if (!delay) {
    retire(self, group);
    return;
  }
  group.now = supervised_group::condition::waiting;
  self->delayed_send(self, *delay, restart_group{static_cast<uint32_t>(index)});
}

void start_again(self_ptr self, size_t index) {
  coordinator_state& s = self->state;
  supervised_group& group = s.groups.at(index);
  auto links = std::make_shared<pipeline_links>(*s.links);
  const auto groups = together_with(s, index);
  try {
    for (const size_t i : groups) s.options.spawn_group(*links, s.groups[i].id, life_now(s));
  } catch (const std::exception& e) {
    group.last_error = e.what();
    spdlog::error("restart failed: {}", group.last_error);
    restart_or_retire(self, index);
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
  if (group.id.what == part::checkpointer) try_save(self);
  if (group.id.what == part::evaluator) try_evaluation(self);
  if (group.id.what != part::metrics) return;
  for (const step_done& done : s.unnoted) self->send(s.links->metrics, done);
  note_evaluations(self, 0);
  self->send(s.links->metrics, s.outcome.saves);
  if (std::exchange(s.flush_again, false)) flush_before_save(self);
}

void on_restart(self_ptr self, const restart_group& m) {
  coordinator_state& s = self->state;
  const supervised_group& group = s.groups.at(m.group);
  if (s.shutdown_stage || group.now != supervised_group::condition::waiting) return;
  if (group.id.what == part::drafter)
    replica_may_join(self, group.id.index);
  else
    start_again(self, m.group);
}

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
    s.rebuilding = s.rebuilding || group.id.what == part::dispatcher;
    end_group(self, index);
  }
  if (s.going_back && is_upstream(group.id.what)) {
    upstream_ended(self);
    return;
  }
  if (s.rebuilding && is_upstream(group.id.what)) index = s.group_of(part::dispatcher);
  const auto groups = together_with(s, index);
  const bool all_gone = std::none_of(s.children.begin(), s.children.end(), [&](const auto& c) {
    return c.alive && std::count(groups.begin(), groups.end(), c.group) > 0;
  });
  if (all_gone) group_is_down(self, index);
}

}  // namespace dflash::coordination

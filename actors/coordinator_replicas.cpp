#include <spdlog/spdlog.h>

#include <stdexcept>

#include "actors/coordinator_parts.hpp"
#include "config/error.hpp"

namespace dflash::coordination {

namespace {

void spawn_drafters(self_ptr self, const std::vector<uint32_t>& ranks, life_of_drafter life) {
  coordinator_state& s = self->state;
  auto links = std::make_shared<pipeline_links>(*s.links);
  next_life next = life_now(s);
  next.drafter = std::move(life);
  for (const uint32_t rank : ranks) {
    next.drafter.number = ++links->drafter_lives.at(rank);
    const size_t index = s.group_of(part::drafter, rank);
    s.options.spawn_group(*links, s.groups[index].id, next);
    s.groups[index].now = supervised_group::condition::running;
    watch_group(self, *links, index);
  }
  set_links(self, std::move(links));
}

// No replica has the state of the run any more: all that is upstream of the drafters ends, one of
// them goes back to a checkpoint, and everyone starts again from there.
void go_back(self_ptr self) {
  coordinator_state& s = self->state;
  if (!s.going_back) {
    spdlog::warn(
        "no drafter is left that has the state after step {}: the run goes back to its "
        "last checkpoint",
        s.book->steps());
    s.going_back = true;
    forget_saves(self);
    end_group(self, s.group_of(part::dispatcher));
  }
  // A checkpoint that is being written is the one to go back to.
  if (!upstream_is_gone(s) || s.saves->is_writing()) return;
  const auto rank = s.replicas->restore();
  if (!rank) return;
  life_of_drafter life;
  life.attempt = s.book->give_up_step();
  life.restore = true;
  spawn_drafters(self, {*rank}, std::move(life));
}

// A drafter has gone back to the checkpoint.
void go_on_from(self_ptr self, uint64_t steps) {
  coordinator_state& s = self->state;
  const uint64_t before = s.book->most_steps();
  try {
    s.book->rewind(steps);
  } catch (const std::runtime_error& e) {
    shut_down(self, run_status::failed, e.what());
    return;
  }
  spdlog::warn("the run goes on from step {}; up to step {} it is done again", steps, before);
  s.going_back = false;
  s.outcome.steps = s.outcome.saved_step = steps;
  if (s.stopping) s.stop_k = s.book->stop();
  start_again(self, s.group_of(part::dispatcher));
  end_if_done(self);
}

}  // namespace

void replica_lost(self_ptr self, uint32_t rank) {
  coordinator_state& s = self->state;
  if (rank == 0) saver_lost(self);
  for (const uint32_t copy : s.replicas->lost(rank)) {
    const size_t index = s.group_of(part::drafter, copy);
    s.groups[index].blameless = true;
    end_group(self, index);
  }
  if (const auto done = s.book->lost(rank)) step_is_done(self, *done);
  advance_replicas(self);
}

void replica_may_join(self_ptr self, uint32_t rank) {
  self->state.replicas->ready(rank);
  advance_replicas(self);
}

void advance_replicas(self_ptr self) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage) return;
  if (s.replicas->nobody_left()) {
    // At the end nobody is needed once the last copy is made.
    const bool needed = !s.book->finished() || s.saves->holds_for_save() || s.save_missed;
    if (needed || s.going_back) go_back(self);
    return;
  }
  // Between the go and the commit replicas have different states.
  if (s.book->is_going()) return;
  if (s.replicas->wants_round()) {
    const step_hold hold{s.book->steps(), s.book->begin_attempt()};
    for (const uint32_t rank : s.replicas->begin_round(hold.attempt))
      self->send(s.links->drafters.at(rank), hold);
    return;
  }
  const auto joining = s.replicas->join();
  if (!joining) return;
  life_of_drafter life;
  life.step = s.book->steps();
  life.attempt = s.book->attempt();
  life.state = joining->state;
  life.donor = joining->donor;
  spawn_drafters(self, joining->ranks, std::move(life));
}

void on_held(self_ptr self, const replica_held& m) {
  self->state.replicas->held(m);
  advance_replicas(self);
}

void on_ready(self_ptr self, const replica_ready& m) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage || s.links->drafter_lives.at(m.rank) != m.life) return;
  if (!s.replicas->joined(m.rank)) return;
  if (s.last_commit_ns > 0) s.last_commit_ns = now_ns();  // what it took is no step
  if (s.going_back)
    go_on_from(self, m.step);
  else
    DFLASH_CHECK(m.step == s.book->steps(), "a drafter came back with another step", m.step);
  if (s.shutdown_stage) return;
  s.book->back(m.rank);
  try_save(self);
  advance_replicas(self);
}

}  // namespace dflash::coordination

#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

#include "actors/coordinator_parts.hpp"

namespace dflash::coordination {

namespace {

constexpr double spike_worth_a_line = 6;  // standard deviations

void tell(const step_done& done) {
  if (done.skipped)
    spdlog::warn("step {} skipped ({}): weights and moments stay as they were",
                 done.step + 1,
                 skip_cause_name(done.skipped_for));
  else if (done.has_loss_z && done.loss_z >= spike_worth_a_line)
    spdlog::warn("step {}: its loss is {:.1f} standard deviations above the mean",
                 done.step + 1,
                 static_cast<double>(done.loss_z));
}

// What holds the go of the open step; the time of the holds is counted.
bool is_held(self_ptr self) {
  coordinator_state& s = self->state;
  const bool by_evaluation = !s.stopping && s.saves->holds_for_evaluation(s.book->steps() + 1);
  const auto count = [&](bool held, int64_t& since, int64_t& sum) {
    if (held && since == 0)
      since = now_ns();
    else if (!held && since > 0)
      sum += now_ns() - std::exchange(since, 0);
  };
  count(by_evaluation, s.eval_wait_ns, s.outcome.eval_waited_ns);
  return by_evaluation || s.saves->holds_for_save() || s.saves->holds_for_copy();
}

}  // namespace

void try_go(self_ptr self) {
  coordinator_state& s = self->state;
  // Batches that were in flight at a stop may fill another step: it never goes.
  if (s.shutdown_stage || s.book->finished() || !s.book->is_ready() || is_held(self)) return;
  const step_go go = s.book->go();
  for (const drafter_actor& drafter : s.links->drafters) self->send(drafter, go);
}

void on_reduced(self_ptr self, const step_reduced& m) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage || s.book->finished()) return;
  s.book->reduced(m);
  try_go(self);
}

void on_noted(self_ptr self, const step_noted& m) {
  coordinator_state& s = self->state;
  while (!s.unnoted.empty() && s.unnoted.front().step <= m.step) s.unnoted.pop_front();
}

void on_committed(self_ptr self, const step_committed& m) {
  if (self->state.shutdown_stage) return;  // the run has ended with the step before
  try {
    if (const auto done = self->state.book->committed(m)) step_is_done(self, *done);
  } catch (const std::runtime_error& e) {  // the drafters' bits are not what they should be
    shut_down(self, run_status::failed, e.what());
  }
}

void step_is_done(self_ptr self, const step_done& done) {
  coordinator_state& s = self->state;
  s.outcome.steps = s.book->steps();
  s.stages.report_step(self->stats(), done.step);
  note_commit(self);
  self->send(s.links->dispatcher, done);
  if (!done.again) {
    tell(done);
    self->send(s.links->profiler, done);
    if (!s.is_retired(part::metrics)) {
      s.unnoted.push_back(done);
      self->send(s.links->metrics, done);
    }
  }
  if (std::string why = s.book->diagnosis(); !why.empty()) {
    shut_down(self, run_status::failed, std::move(why));
    return;
  }
  if (s.saves->is_due(s.book->steps(), s.book->finished()) || s.save_missed) begin_save(self);
  advance_replicas(self);
}

}  // namespace dflash::coordination

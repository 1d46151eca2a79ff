#include <spdlog/spdlog.h>

#include <utility>

#include "actors/coordinator_parts.hpp"

namespace dflash::coordination {

namespace {

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
  return by_evaluation || s.saves->holds_for_save();
}

}  // namespace

void try_go(self_ptr self) {
  coordinator_state& s = self->state;
  if (!s.go_pending || s.book->finished() || is_held(self)) return;
  s.go_pending = false;
  for (const drafter_actor& drafter : s.links->drafters)
    self->send(drafter, step_go{s.book->steps(), s.noted_k});
}

void on_reduced(self_ptr self, const step_reduced& m) {
  coordinator_state& s = self->state;
  // Batches that were in flight at a stop may fill another step: it never goes.
  if (s.book->finished() || !s.book->reduced(m)) return;
  s.go_pending = true;
  try_go(self);
}

void on_noted(self_ptr self, const step_noted& m) {
  coordinator_state& s = self->state;
  for (; !s.unnoted.empty() && s.unnoted.front().step <= m.step; s.unnoted.pop_front())
    s.noted_k = s.unnoted.front().end_k;
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
  if (s.saves->is_due(s.book->steps(), s.book->finished())) begin_save(self);
}

}  // namespace dflash::coordination

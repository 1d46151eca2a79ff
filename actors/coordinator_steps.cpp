#include <spdlog/spdlog.h>

#include "actors/coordinator_parts.hpp"

namespace dflash::coordination {

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
  if (s.book->save_is_due()) begin_save(self);
}

}  // namespace dflash::coordination

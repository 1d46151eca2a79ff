#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "actors/coordinator_parts.hpp"
#include "observe/format.hpp"

namespace dflash::coordination {

namespace {

constexpr std::chrono::seconds flush_timeout{10};

void flushed(self_ptr self) {
  self->state.saves->flushed();
  try_save(self);
}

bool is_complete(const coordinator_state& s) {
  return s.book->complete() || s.saves->ends_at() == s.book->steps();
}

// The go waits for the disk, from now on or not any more.
void note_wait(self_ptr self, bool waits) {
  coordinator_state& s = self->state;
  if (waits && s.disk_wait_ns == 0) {
    s.disk_wait_ns = now_ns();
    if (++s.outcome.saves.waited == 1)
      spdlog::warn(
          "a checkpoint is due after step {}, but the one before is still being written: "
          "training waits for the disk; from now on this is only counted",
          s.book->steps());
  } else if (!waits && s.disk_wait_ns > 0) {
    s.outcome.saves.waited_ns += now_ns() - std::exchange(s.disk_wait_ns, 0);
  }
}

void count_failure(self_ptr self, uint64_t steps, const std::string& why) {
  coordinator_state& s = self->state;
  ++s.outcome.saves.failed;
  s.last_save_error = why;
  spdlog::error("checkpoint at step {} failed, older ones stand: {}", steps, why);
  self->send(s.links->metrics, s.outcome.saves);
}

}  // namespace

// metrics.jsonl must reach as far as the checkpoint, so metrics writes first; the next step's go
// waits for that, and for the disk if it is not done with the one before, so that drafter 0 gets
// the request before it updates again.
void begin_save(self_ptr self) {
  coordinator_state& s = self->state;
  s.save_missed = false;
  s.saves->ask(s.book->make_save_request(), s.book->finished(), is_complete(s));
  flush_before_save(self);
}

void flush_before_save(self_ptr self) {
  coordinator_state& s = self->state;
  s.flush_again = !s.links->metrics;
  const auto without = [=] {
    spdlog::error("metrics did not answer before a checkpoint: metrics.jsonl may lack steps");
    flushed(self);
  };
  if (s.is_retired(part::metrics)) without();
  if (!s.links->metrics) return;
  const uint32_t attempt = ++s.flush_attempt;
  self->request(s.links->metrics, caf::duration{flush_timeout}, flush_metrics{s.book->steps()})
      .then(
          [=](uint64_t) {
            if (self->state.flush_attempt == attempt) flushed(self);
          },
          [=](const caf::error& e) {
            if (self->state.flush_attempt == attempt && e == caf::sec::request_timeout) without();
          });
}

void try_save(self_ptr self) {
  coordinator_state& s = self->state;
  note_wait(self, s.saves->waits_for_disk());
  if (!s.links->checkpointer || !s.replicas->trains(0)) return;  // starts again soon
  if (auto request = s.saves->begin()) self->send(s.links->drafters[0], std::move(*request));
  try_go(self);
}

void on_saved(self_ptr self, const save_done& m) {
  coordinator_state& s = self->state;
  const bool known = s.saves->end(m.steps, m.good);
  if (m.good) {
    ++s.outcome.saves.written;
    s.outcome.saves.copied_ns += m.copied_ns;
    s.outcome.saves.written_ns += m.written_ns;
    s.outcome.saved_step = m.steps;
    s.last_save_error.clear();
    self->send(s.links->metrics, s.outcome.saves);
  } else if (known) {
    count_failure(self, m.steps, m.error);
  }
  try_save(self);
  try_evaluation(self);
  end_if_done(self);
  if (s.going_back) advance_replicas(self);
}

void lose_save(self_ptr self, const std::string& why) {
  coordinator_state& s = self->state;
  const auto steps = s.saves->lose();
  if (!steps) return;
  count_failure(self, *steps, why);
  if (s.going_back) return;
  if (s.book->finished() && *steps == s.book->steps() &&
      ++s.last_save_deaths < s.options.restart.max_failures) {
    begin_save(self);  // by the next life
    advance_replicas(self);
    return;
  }
  try_evaluation(self);
  end_if_done(self);
}

// The state that it was to copy is there as long as the next step has not gone.
void saver_lost(self_ptr self) {
  coordinator_state& s = self->state;
  const auto steps = s.saves->lose_copy();
  if (!steps) return;
  if (s.book->steps() == *steps && !s.book->is_going()) {
    s.saves->ask(s.book->make_save_request(), s.book->finished(), is_complete(s));
    s.saves->flushed();
    return;
  }
  count_failure(self, *steps, "drafter 0 died with it; one is saved after the next step");
  s.save_missed = true;
}

void forget_saves(self_ptr self) {
  coordinator_state& s = self->state;
  ++s.flush_attempt;
  s.flush_again = s.save_missed = false;
  s.saves->forget_due();
}

void end_if_done(self_ptr self) {
  coordinator_state& s = self->state;
  if (s.going_back || !s.book->finished() || !s.saves->is_idle() || s.records > 0) return;
  if (!evaluations_are_noted(s)) return;
  if (!s.last_save_error.empty()) {
    shut_down(
        self, run_status::failed, "the last checkpoint could not be saved: " + s.last_save_error);
    return;
  }
  const bool awaits = s.saves->awaits_evaluations();
  if (awaits && !s.stopping) return;
  if (!is_complete(s)) {
    shut_down(self, run_status::stopped);
  } else if (awaits) {
    shut_down(self,
              run_status::stopped,
              "all steps are done, but the last evaluation is missing: --resume makes it");
  } else if (s.book->complete()) {
    shut_down(self, run_status::completed);
  } else {
    s.outcome.stopped_early = true;
    shut_down(self,
              run_status::completed,
              fmt::format("stopped early: no better evaluation after step {}",
                          s.saves->history().best()->step));
  }
}

}  // namespace dflash::coordination

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "actors/coordinator_parts.hpp"

namespace dflash::coordination {

namespace {

std::string figures(const evaluation& e) {
  std::string text;
  if (e.tau) text += fmt::format(" tau {:.4f}", *e.tau);
  if (e.loss) text += fmt::format(" loss {:.4f} accept_len {:.3f}", *e.loss, *e.accept_len);
  return text;
}

std::shared_ptr<const evaluation_history> copy_of(const coordinator_state& s) {
  return std::make_shared<const evaluation_history>(s.saves->history());
}

}  // namespace

void try_evaluation(self_ptr self) {
  coordinator_state& s = self->state;
  if (!s.links->evaluator) return;
  if (const auto steps = s.saves->next_evaluation())
    self->send(s.links->evaluator, evaluate_request{*steps});
}

void note_evaluations(self_ptr self, uint64_t first) {
  coordinator_state& s = self->state;
  const auto history = copy_of(s);
  for (uint64_t i = first; i < history->all().size(); ++i)
    self->send(s.links->metrics, evaluation_note{history, i});
}

void apply_patience(self_ptr self) {
  coordinator_state& s = self->state;
  const auto ends = s.saves->ends_at();
  if (!ends || s.book->last_step() <= *ends) return;
  s.stop_k = s.book->end_at(*ends);
  spdlog::info("no better evaluation after step {}: the run ends after step {}",
               s.saves->history().best()->step,
               s.book->last_step());
  self->send(s.links->dispatcher, stop_at{*s.stop_k});
}

void on_evaluated(self_ptr self, const evaluated& m) {
  coordinator_state& s = self->state;
  if (!m.result) {
    spdlog::error("the checkpoint at step {} is not evaluated: {}", m.steps, m.error);
    s.saves->give_up_evaluation(m.steps);
  } else if (const auto best = s.saves->evaluated(*m.result)) {
    spdlog::info(
        "held out at step {}:{}{}", m.steps, figures(*m.result), *best ? ", the best" : "");
    const auto history = copy_of(s);
    s.outcome.evaluations = history;
    self->send(s.links->metrics, evaluation_note{history, history->all().size() - 1});
    if (s.links->checkpointer) {
      ++s.records;
      self->send(s.links->checkpointer, evaluation_record{history, s.saves->kept_steps()});
    }
    apply_patience(self);
  }
  try_evaluation(self);
  try_go(self);
  end_if_done(self);
}

void on_evaluation_noted(self_ptr self, const evaluation_noted& m) {
  coordinator_state& s = self->state;
  s.noted_evaluation = std::max(s.noted_evaluation, m.step);
  end_if_done(self);
}

// Metrics may be dead, and has to come back for them.
bool evaluations_are_noted(const coordinator_state& s) {
  const auto& all = s.saves->history().all();
  return all.empty() || all.back().step <= s.noted_evaluation || s.is_retired(part::metrics);
}

void on_recorded(self_ptr self, const record_done& m) {
  coordinator_state& s = self->state;
  if (s.records > 0) --s.records;
  if (!m.error.empty()) {
    ++s.outcome.saves.failed;
    spdlog::error("evaluations could not be written down, --resume would make them again: {}",
                  m.error);
  }
  end_if_done(self);
}

void lose_evaluator(self_ptr self) {
  coordinator_state& s = self->state;
  s.saves->stop_evaluating();
  try_go(self);
  end_if_done(self);
}

}  // namespace dflash::coordination

// When to save and what to evaluate, what the next go has to wait for because of it, and when the
// run ends for want of patience. Plain struct.
//
// At most one snapshot exists: a save that is due while another one is written waits, and the go of
// the next step with it. At most one evaluation is behind: the go of the step at which the next one
// is due waits until the one before has reported. So what patience decides never depends on timing:
// when it is used up by the evaluation at step e, the run ends at the step of the evaluation after
// e, which is the last one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "messages/messages.hpp"
#include "model/evaluation_history.hpp"

namespace dflash {

struct save_options {
  uint64_t every = 0;       // steps; 0: only at the end
  uint64_t keep_every = 0;  // those that stay for good; 0: none
  uint64_t eval_every = 0;  // evaluates, and saves for it; 0: never
  uint64_t patience = 0;    // evaluations without a better one; 0: no end of it
  uint64_t total_steps = 0;
  uint64_t first_step = 0;              // where this process goes on
  std::vector<evaluation> evaluations;  // of earlier processes, up to first_step
  std::vector<uint64_t> missing;        // checkpoints up to first_step that were not evaluated
};

class save_book {
public:
  explicit save_book(save_options options);

  // ---- saving
  // After a commit; `ends`: the run ends here; `complete`: because it is done, not stopped.
  bool is_due(uint64_t steps, bool ends) const;
  void ask(save_request request, bool ends, bool complete);
  void flushed() { flushed_ = true; }
  bool is_flushing() const { return next_ && !flushed_; }
  // Flushed, but the one before is not on disk yet.
  bool waits_for_disk() const { return next_ && flushed_ && writing_; }
  // What drafter 0 is to be asked for now; it counts as being written then.
  std::optional<save_request> begin();
  bool is_writing() const { return writing_.has_value(); }
  // The one that is being written ends. False: another one, of which nothing is known any more.
  bool end(uint64_t steps, bool good);
  void copied(uint64_t steps) { copied_ = copied_ || writing_ == steps; }
  // Nobody will write it: the step whose save failed so.
  std::optional<uint64_t> lose();
  // The same where the drafter died: nothing if the copy was made before.
  std::optional<uint64_t> lose_copy() { return copied_ ? std::nullopt : lose(); }
  // The run goes back before it: not asked for yet, and it will be due again.
  void forget_due();
  std::optional<uint64_t> writing() const { return writing_; }
  bool is_idle() const { return !next_ && !writing_; }
  // Those that must not be removed: the best, and those to be evaluated.
  std::vector<uint64_t> kept_steps() const;

  // ---- what the go of step number `step` (1: the first) waits for
  bool holds_for_save() const { return next_.has_value(); }
  // A checkpoint that is to be evaluated must not be lost with drafter 0: its copy comes first.
  bool holds_for_copy() const;
  bool holds_for_evaluation(uint64_t step) const;
  // On a stop: this step may run whatever the evaluation that holds it says.
  bool runs_in_any_case(uint64_t step) const;

  // ---- evaluating
  bool evaluates() const { return options_.eval_every > 0; }
  bool awaits_evaluations() const { return !due_.empty(); }
  // The checkpoint to give to the evaluator, if it has none and one is on disk.
  std::optional<uint64_t> next_evaluation();
  // Whether it is the best so far; nothing: nobody waits for it.
  std::optional<bool> evaluated(const evaluation& result);
  // It cannot be made; the next one's turn.
  void give_up_evaluation(uint64_t steps);
  // The evaluator died with its work: it will be given out again.
  void evaluator_died() { at_work_ = false; }
  // There will be no evaluator any more.
  void stop_evaluating();
  const evaluation_history& history() const { return history_; }
  // Step at which the run ends early.
  std::optional<uint64_t> ends_at() const;

private:
  uint64_t next_after(uint64_t step) const;

  save_options options_;
  evaluation_history history_;
  std::optional<save_request> next_;  // due, drafter 0 is not asked for it yet
  bool flushed_ = false;
  std::optional<uint64_t> writing_;
  bool copied_ = false;       // of that one
  std::deque<uint64_t> due_;  // evaluations without a result, rising
  std::set<uint64_t> saved_;  // of these
  bool at_work_ = false;      // the evaluator has the first of them
};

}  // namespace dflash

// Two-step commits, the coordinator's side: no drafter updates before all have reduced; from the go
// on the step is done, whoever dies; and it counts when all who live have updated. Also decides
// which steps are skipped. Plain struct.
//
// A run that has lost all its replicas goes back to a checkpoint. Steps that were committed before
// are done again then: skipped where they were skipped, and their values must be the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/step_plan.hpp"
#include "messages/messages.hpp"
#include "model/loss_statistics.hpp"

namespace dflash {

struct commit_options {
  step_plan plan;
  uint32_t drafters = 1;
  uint64_t first_step = 0;      // committed steps when the run begins or goes on
  uint64_t skipped = 0;         // of the steps before
  loss_statistics losses = {};  // of the steps before
  double skip_spikes = 0;  // standard deviations above the mean loss; 0: none is skipped for it
  uint32_t max_skips_in_a_row = 10;
};

class commit_book {
public:
  explicit commit_book(commit_options options);

  // ---- the open step
  // Old attempts mean nothing. Throws std::runtime_error for news of another step.
  void reduced(const step_reduced& m);
  // All have reduced; not gone yet.
  bool is_ready() const;
  // From here on the step is done. Decides whether it is skipped.
  step_go go();
  bool is_going() const { return going_; }
  // The step that is done now, once all who live have updated. Throws std::runtime_error if
  // replicas disagree on what should be the same gradient, or if a step that is done again gives
  // other values than before.
  std::optional<step_done> committed(const step_committed& m);
  void dropped(uint64_t k) { dropped_.insert(k); }

  // ---- replicas
  // The step that is done now, if that one was the last to be waited for.
  std::optional<step_done> lost(uint32_t rank);
  // It has the state of the open step.
  void back(uint32_t rank) { present_.insert(rank); }
  // What was reduced of the open step is void. Not between its go and its commit.
  uint32_t begin_attempt();
  // All replicas are lost, the open step with them.
  uint32_t give_up_step();
  uint32_t attempt() const { return attempt_; }
  // After that: goes on from a checkpoint of so many steps. Throws std::runtime_error if that is
  // before the run's beginning in this process.
  void rewind(uint64_t steps);

  // Ends the run after the open step, or at once if nothing is open. Returns the first k that is
  // not needed any more.
  uint64_t stop();
  // Ends the run after so many steps, if it has no fewer already; likewise.
  uint64_t end_at(uint64_t steps);

  uint64_t steps() const { return steps_; }  // committed
  // Committed before the run went back, or now.
  uint64_t most_steps() const { return options_.first_step + records_.size(); }
  uint64_t next_k() const { return next_k_of(steps_); }  // first batch that is not committed
  uint64_t last_step() const { return last_; }  // steps of the run when it is complete or stopped
  bool finished() const { return steps_ >= last_; }
  // Finished because all steps of the plan are done.
  bool complete() const { return steps_ >= options_.plan.total_steps(); }
  save_request make_save_request() const;
  uint64_t skipped() const { return before_or(steps_).skipped; }
  // Why the run cannot go on after what was committed last; empty: it can.
  std::string diagnosis() const;
  const std::set<uint64_t>& dropped() const { return dropped_; }

private:
  // What a step was, and what was known after it.
  struct record {
    f64_bits grad_norm, rate, update_norm, loss;
    skip_cause skipped_for = skip_cause::none;
    uint64_t skipped = 0;  // steps so far
    uint32_t skips_in_a_row = 0;
    loss_statistics losses;
  };
  // After `steps` steps.
  const record& before_or(uint64_t steps) const;
  uint64_t next_k_of(uint64_t steps) const;
  bool all_have_updated() const;
  step_done finish();
  void compare_with(const record& before, const record& now) const;

  commit_options options_;
  uint64_t steps_;
  uint64_t last_;
  std::set<uint32_t> present_;  // with the state of the open step
  uint32_t attempt_ = 0;
  std::set<uint32_t> reduced_;
  std::map<uint64_t, batch_report> reports_;  // by k, of the open step
  bool going_ = false;
  skip_cause skip_ = skip_cause::none;  // as told with the go
  double loss_ = 0;                     // mean of the open step
  std::vector<step_committed> committed_;
  std::set<uint64_t> dropped_;
  record first_;                 // after first_step
  std::vector<record> records_;  // [step - first_step], about 90 bytes each
};

}  // namespace dflash

// Two-step commits, the coordinator's side: no drafter updates before all have reduced, and a step
// counts when all have updated. Plain struct.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "data/step_plan.hpp"
#include "messages/messages.hpp"

namespace dflash {

struct commit_options {
  step_plan plan;
  uint32_t drafters = 1;
  uint64_t first_step = 0;  // committed steps when the run begins or goes on
};

class commit_book {
public:
  explicit commit_book(commit_options options);

  // True: that was the last one, the step may go. Throws std::runtime_error for news of another
  // step.
  bool reduced(const step_reduced& m);
  // The step that is done now, once all have updated. Throws std::runtime_error if replicas
  // disagree on the norm of what should be the same gradient.
  std::optional<step_done> committed(const step_committed& m);
  void dropped(uint64_t k) { dropped_.insert(k); }

  // Ends the run after the open step, or at once if nothing is open. Returns the first k that is
  // not needed any more.
  uint64_t stop();
  // Ends the run after so many steps, if it has no fewer already; likewise.
  uint64_t end_at(uint64_t steps);

  uint64_t steps() const { return steps_; }     // committed
  uint64_t next_k() const;                      // first batch that is not committed
  uint64_t last_step() const { return last_; }  // steps of the run when it is complete or stopped
  bool finished() const { return steps_ >= last_; }
  // Finished because all steps of the plan are done.
  bool complete() const { return steps_ >= options_.plan.total_steps(); }
  save_request make_save_request() const;
  uint64_t skipped() const { return skipped_; }
  void set_skipped(uint64_t skipped) { skipped_ = skipped; }

private:
  commit_options options_;
  uint64_t steps_;
  uint64_t last_;
  std::set<uint32_t> reduced_;
  std::vector<step_committed> committed_;  // of the open step
  std::set<uint64_t> dropped_;
  uint64_t skipped_ = 0;
};

}  // namespace dflash

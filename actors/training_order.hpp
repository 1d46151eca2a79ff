// In which order a drafter trains: its own batches (k mod M = rank) by rising k, no batch of a
// later step before the open one is committed. What comes early waits aside, within the mailbox
// limit. Plain struct.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "data/step_plan.hpp"
#include "messages/messages.hpp"

namespace dflash {

class training_order {
public:
  training_order(step_plan plan, uint32_t rank, uint32_t drafters, uint64_t first_step);

  // false: it was trained already or is here already (a duplicate: give its credit back).
  bool arrived(hidden_batch m);
  // The next batch, if it is here and belongs to the open step.
  const hidden_batch* next() const;
  void trained();
  // All own batches of the open step are trained (a step may have none for this rank).
  bool own_part_is_done() const;
  // The open step was committed.
  void committed();

  bool finished() const { return step_ >= plan_.total_steps(); }
  uint64_t open_step() const { return step_; }
  size_t waiting() const { return aside_.size(); }
  // Own batches below are trained; those that wait aside.
  uint64_t trained_end_k() const { return trained_below_; }
  std::vector<uint64_t> held() const;

private:
  void open(uint64_t step);

  step_plan plan_;
  uint32_t rank_, drafters_;
  uint64_t step_ = 0;
  std::optional<uint64_t> next_k_;  // of the open step; none: own part done
  uint64_t trained_below_ = 0;      // own batches below this are trained
  std::map<uint64_t, hidden_batch> aside_;
};

}  // namespace dflash

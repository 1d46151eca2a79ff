// One line of metrics.jsonl from the sums of a step: what must be the same bits in every run comes
// first, times last, under "time". Plain functions.
#pragma once

#include <cstdint>

#include "messages/messages.hpp"
#include "model/evaluation_history.hpp"
#include "model/loss.hpp"
#include "observe/jsonl.hpp"

namespace dflash {

// Sums over the batches of a step, taken in order of k.
struct step_total {
  step_sums all;       // losses: every batch
  step_sums measured;  // hits and blocks: batches whose k is a multiple of metrics.every
  uint64_t batches = 0;
  uint64_t dropped = 0;
  int64_t tokens = 0;  // of real documents

  void add(const batch_report& m);
};

// Metrics of dflash.md section 5 out of counts.
double accuracy(const step_sums& sums);
double expected_length(const step_sums& sums);  // eal: sum over k of the product of acc@1..k

// The deterministic part: step (1 = the first), k (batches done), losses, accuracies, norms, rate.
// Accuracies are left out where no batch of the step was measured.
json_object step_record(const step_done& done, const step_total& total, const loss_terms& terms);

// A line of its own kind: "kind" is "eval", "step" that of the checkpoint, then the figures,
// whether it is the best so far, and times last.
json_object evaluation_line(const evaluation_history& history, uint64_t index);

}  // namespace dflash

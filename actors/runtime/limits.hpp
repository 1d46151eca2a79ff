// Mailbox limits, derived from the layout; there is no other queue setting.
#pragma once

#include <cstdint>
#include <string>

namespace dflash {

struct pipeline_limits {
  uint32_t targets = 0;          // N
  uint32_t readers = 0;          // 1 if hidden states are kept or captured: the loader reads
  uint32_t drafters = 0;         // M
  uint64_t batch_bytes = 0;      // hidden states of one batch
  uint32_t drafter_batches = 0;  // per drafter
  uint32_t capture_slots = 0;    // per producer, of its postprocess

  uint64_t drafter_bytes() const { return drafter_batches * batch_bytes; }
  uint64_t postprocess_bytes() const { return capture_slots * batch_bytes; }
  // What can be in flight at once, over the whole pipeline.
  uint64_t total_bytes() const;
  // What a lowered budget costs, for people; empty: nothing was lowered.
  std::string cost;
};

// Defaults: ceil(N / M) + 2 batches per drafter, two capture slots per producer. A budget (bytes,
// 0: none) lowers drafters first, evenly, then capture slots, down to one each; below that it
// throws error naming the smallest that works.
pipeline_limits derive_limits(uint32_t targets,
                              uint32_t readers,
                              uint32_t drafters,
                              uint64_t batch_bytes,
                              uint64_t budget_bytes);

}  // namespace dflash

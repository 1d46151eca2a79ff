#include "actors/runtime/limits.hpp"

#include <fmt/format.h>

#include "config/error.hpp"

namespace dflash {

uint64_t pipeline_limits::total_bytes() const {
  return uint64_t{drafters} * drafter_bytes() + uint64_t{targets + readers} * postprocess_bytes();
}

pipeline_limits derive_limits(uint32_t targets,
                              uint32_t readers,
                              uint32_t drafters,
                              uint64_t batch_bytes,
                              uint64_t budget_bytes) {
  pipeline_limits limits;
  limits.targets = targets;
  limits.readers = readers;
  limits.drafters = drafters;
  limits.batch_bytes = batch_bytes;
  limits.drafter_batches = (targets + drafters - 1) / drafters + 2;
  limits.capture_slots = 2;
  if (budget_bytes == 0 || limits.total_bytes() <= budget_bytes) return limits;

  const uint32_t default_batches = limits.drafter_batches;
  while (limits.total_bytes() > budget_bytes && limits.drafter_batches > 2)
    --limits.drafter_batches;
  if (limits.total_bytes() > budget_bytes) limits.capture_slots = 1;
  if (limits.total_bytes() > budget_bytes) limits.drafter_batches = 1;
  if (limits.total_bytes() > budget_bytes)
    throw error(
        fmt::format("a budget of {} bytes cannot hold one batch of {} bytes per drafter and one "
                    "capture slot per producer",
                    budget_bytes,
                    batch_bytes),
        "layout.max_in_flight",
        fmt::format("the smallest that works with {} targets{} and {} drafters is {}",
                    targets,
                    readers > 0 ? ", the reader of kept states" : "",
                    drafters,
                    limits.total_bytes()));
  if (limits.drafter_batches < default_batches)
    limits.cost =
        fmt::format("{} instead of {} batches per drafter: less is ready when a target is late",
                    limits.drafter_batches,
                    default_batches);
  if (limits.drafter_batches == 1)
    limits.cost += "; a drafter waits a whole capture after each batch that it trains";
  if (limits.capture_slots == 1)
    limits.cost += "; a target waits while its last result is post-processed";
  return limits;
}

}  // namespace dflash

// Makes batches ahead of their use, within the credit of the dispatcher; batches to be made again
// go first. Reads kept hidden states, or captured ones, as the lane after the last target.
// Detached: it touches the disk.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "actors/hidden_shape.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "data/batches.hpp"
#include "data/hidden_store.hpp"
#include "device/slot_pool.hpp"
#include "model/captured_states.hpp"

namespace dflash {

struct loader_options {
  std::shared_ptr<const batch_source> source;
  uint64_t first_k = 0;
  uint64_t end_k = 0;                   // exclusive
  std::shared_ptr<hidden_store> store;  // null: hidden states are not kept
  hidden_reader read;                   // captured states, in the place of targets; empty: none
  hidden_shape shape;                   // of kept or captured states
  uint32_t lane = 0;                    // its number as reader: N
  std::shared_ptr<slot_pool> slots;     // of what it has read; null if it reads nothing
  bool profile = false;
};

struct loader_state {
  static inline const char* name = "loader";

  // What to make next: replays first, then within the credit; nothing: wait.
  std::optional<uint64_t> take();

  loader_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  uint64_t next_k = 0;
  uint64_t credit = 0;
  std::deque<uint64_t> again;
  epoch_order order;      // of the source's rows
  bool stepping = false;  // a next_atom is on its way
  bool asking = false;    // as reader: has asked for a job
};

loader_actor spawn_loader(caf::actor_system& system,
                          runs_as how,
                          actor_identity identity,
                          loader_options options);

}  // namespace dflash

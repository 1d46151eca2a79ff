// Writes checkpoints beside training, one at a time, and all else that changes in their folder:
// evaluations, `best`, which ones are removed. Detached (disk). If it dies, the save at work has
// failed.
#pragma once

#include <functional>
#include <memory>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"

namespace dflash {

struct checkpointer_options {
  // Blocks; throws where the disk refuses. Empty: evaluations are not recorded.
  std::function<void(const evaluation_record&)> record;
  bool profile = false;
};

struct checkpointer_state {
  static inline const char* name = "checkpointer";
  checkpointer_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
};

checkpointer_actor spawn_checkpointer(caf::actor_system& system,
                                      runs_as how,
                                      actor_identity identity,
                                      checkpointer_options options);

}  // namespace dflash

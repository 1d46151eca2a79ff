// Held-out figures of checkpoints, beside training. Detached; works in pieces, so that it hears
// when it has to end. Training does not depend on it: dead, it starts again with the same
// checkpoint, and when it keeps failing the run goes on without evaluations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "model/evaluation_history.hpp"

namespace dflash {

struct evaluation_work {
  // Opens the checkpoint of these steps. Throws dflash::error if it cannot be used.
  std::function<void(uint64_t steps)> begin;
  // Some of the work; the figures when all is done.
  std::function<std::optional<evaluation>()> go_on;
};

struct evaluator_options {
  std::function<evaluation_work()> make;  // in the evaluator's own thread
  int64_t threads = 1;
  bool profile = false;
};

struct evaluator_state {
  static inline const char* name = "evaluator";
  evaluator_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  std::optional<evaluation_work> work;
  std::optional<uint64_t> steps;  // of the checkpoint at work
};

evaluator_actor spawn_evaluator(caf::actor_system& system,
                                runs_as how,
                                actor_identity identity,
                                evaluator_options options);

}  // namespace dflash

// Hands out batches: pulls by targets, room at the drafter reserved before a target begins,
// strictly in order of k. Scheduled; all decisions are dispatch_book's.
#pragma once

#include "actors/dispatch_book.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"

namespace dflash {

struct dispatcher_state {
  static inline const char* name = "dispatcher";
  std::optional<dispatch_book> book;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
};

dispatcher_actor spawn_dispatcher(caf::actor_system& system,
                                  actor_identity identity,
                                  dispatch_options options,
                                  bool profile = false);

}  // namespace dflash

// Answers who asks for it, from this host or another process, with the mailboxes of all actors.
// Reads their counters only: it works while every other actor is busy or stuck. Detached.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "messages/node_actors.hpp"

namespace dflash {

struct inspector_options {
  std::string run;  // its folder
  uint64_t total_steps = 0;
  std::shared_ptr<const std::atomic<uint64_t>> steps;  // committed so far
  std::function<std::string()> details = {};           // for the dump; must not block
  node_door_actor door = {};                           // takes nodes that join; may be invalid
  bool profile = false;
};

struct inspector_state {
  static inline const char* name = "inspector";
  inspector_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  int64_t born_ns = now_ns();
};

run_inspector_actor spawn_inspector(caf::actor_system& system,
                                    runs_as how,
                                    actor_identity identity,
                                    inspector_options options);

}  // namespace dflash

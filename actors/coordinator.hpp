// Run state: two-step commits, when to save, supervision of every actor, orderly stop. Scheduled.
//
// Supervision: every actor is monitored and belongs to a stage of the flow. The death of one ends
// the run with its reason; the last checkpoint stands. (What may be restarted is decided in
// on_down, by role.) Stop: sources, then what they feed, stage by stage, each with a deadline; the
// coordinator last.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/commit_book.hpp"
#include "actors/runtime/metered.hpp"

namespace dflash {

struct coordinator_options {
  std::optional<commit_options> commits;
  uint64_t saved_step = 0;     // of the checkpoint that the run goes on from
  uint64_t skipped_steps = 0;  // before that
  std::vector<uint64_t> dropped;
  caf::actor observer;  // gets run_outcome
  std::chrono::seconds stage_deadline{10};
};

struct supervised {
  std::string name;
  caf::strong_actor_ptr actor;
  uint32_t stage = 0;  // of the shutdown
  bool alive = true;
};

struct coordinator_state {
  static inline const char* name = "coordinator";

  // All actors of `links` by stage of the shutdown: sources first.
  static std::vector<supervised> stages_of(const pipeline_links& links);
  bool stage_is_over(uint32_t stage) const;

  coordinator_options options;
  std::shared_ptr<const pipeline_links> links;
  std::optional<commit_book> book;
  std::vector<supervised> children;
  bool flushing = false;    // metrics before a save; the next go waits
  bool go_pending = false;  // all have reduced, but flushing
  bool stopping = false;    // on request
  std::optional<uint32_t> shutdown_stage;
  run_outcome outcome;
};

coordinator_actor spawn_coordinator(caf::actor_system& system,
                                    actor_identity identity,
                                    coordinator_options options);

}  // namespace dflash

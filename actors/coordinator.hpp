// Run state: two-step commits, when to save, supervision of every actor, orderly stop. Scheduled.
//
// Supervision: every actor is monitored and belongs to a group (actors/supervision.hpp). When one
// dies, its group ends, everyone hears that it is gone, and it starts again after a back-off; a
// group that keeps failing is retired, and the run goes on if it can. With the dispatcher go all
// that work for it, and its next life learns from the drafters what they hold. A drafter comes back
// with the state of another one; without one, the run goes back to its last checkpoint. A run that
// commits nothing for long is stopped with a table of what everyone waits for. Stop: sources, then
// what they feed, stage by stage, each with a deadline; the coordinator last.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/commit_book.hpp"
#include "actors/drafter_train.hpp"
#include "actors/replica_book.hpp"
#include "actors/restart_policy.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "actors/save_book.hpp"
#include "actors/supervision.hpp"

namespace dflash {

// What a group has to know when it starts again.
struct next_life {
  uint64_t next_k = 0;  // the first batch that is not committed
  std::set<uint64_t> dropped;
  life_of_drafter drafter;
};

struct coordinator_options {
  std::optional<commit_options> commits;
  save_options saves;
  uint64_t saved_step = 0;  // of the checkpoint that the run goes on from
  std::vector<uint64_t> dropped;
  caf::actor observer;  // gets run_outcome
  // Spawns the actors of a group and puts their handles in. May throw: counts as a failure.
  std::function<void(pipeline_links&, group_id, const next_life&)> spawn_group;
  restart_options restart;
  std::function<restart_options(group_id)> restart_of;  // where it differs; may be empty
  std::function<void(const std::shared_ptr<const pipeline_links>&)> on_links;  // may be empty
  // Tells an evaluation at work that nobody waits for it any more; safe in any thread, may be
  // empty.
  std::function<void()> give_up_evaluation;
  std::chrono::milliseconds stage_deadline{10000};
  std::chrono::milliseconds stall_floor{60000};  // no commit for less is never a stall
  bool profile = false;
};

struct supervised {
  std::string name;
  caf::strong_actor_ptr actor;
  uint32_t stage = 0;  // of the shutdown
  size_t group = 0;
  bool alive = true;
};

struct supervised_group {
  enum class condition : uint8_t { running, ending, waiting, retired };

  group_id id;
  restart_policy policy;
  condition now = condition::running;
  bool blameless = false;  // ended since what it copied was void: starts again at once
  std::string last_error = {};
};

struct coordinator_state {
  static inline const char* name = "coordinator";

  bool stage_is_over(uint32_t stage) const;
  bool is_retired(part what) const;  // of a part that there is once
  size_t targets_left() const;
  size_t group_of(part what, uint32_t index = 0) const;
  // Nothing committed for so long is a stall: many times the slowest step so far, which passed
  // every stage of the pipeline.
  std::chrono::nanoseconds stall_limit() const;

  coordinator_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  std::optional<commit_book> book;
  std::optional<save_book> saves;
  std::optional<replica_book> replicas;
  std::vector<supervised_group> groups;
  std::vector<supervised> children;
  bool rebuilding = false;         // the dispatcher died: all that is upstream of the drafters goes
  bool going_back = false;         // all replicas are lost: likewise
  std::deque<step_done> unnoted;   // metrics has not written them yet
  bool flush_again = false;        // metrics died while a save waited for it
  uint32_t flush_attempt = 0;      // answers to an older one mean nothing
  bool save_missed = false;        // drafter 0 died with it: save after the next commit
  int64_t disk_wait_ns = 0;        // when the go began to wait for the disk; 0: it does not
  int64_t eval_wait_ns = 0;        // for an evaluation
  uint64_t records = 0;            // of evaluations, not on disk yet
  uint64_t noted_evaluation = 0;   // step of the last one that metrics has written
  std::string last_save_error;     // of the newest save; empty: it is good
  uint32_t last_save_deaths = 0;   // of the checkpointer, with the run's last save
  bool stopping = false;           // on request
  std::optional<uint64_t> stop_k;  // the dispatcher hands out nothing from there on
  std::optional<uint32_t> shutdown_stage;
  run_outcome outcome;

  int64_t last_commit_ns = 0;  // 0: none in this process
  int64_t slowest_step_ns = 0;
  uint64_t steps_at_tick = 0;
  uint64_t evaluated_at_tick = 0;  // pieces of work that the evaluator has done
  uint64_t delivered_at_tick = 0;  // batches, before the first commit
  uint32_t quiet_ticks = 0;
};

coordinator_actor spawn_coordinator(caf::actor_system& system,
                                    actor_identity identity,
                                    coordinator_options options);

}  // namespace dflash

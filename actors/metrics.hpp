// Sums of steps, metrics.jsonl, lines for all other sinks. Scheduled; reads waits and bytes from
// the mailboxes' counters. Other sinks have threads of their own: a slow or broken one slows
// nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/sink_thread.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "actors/step_record.hpp"
#include "observe/progress.hpp"

namespace dflash {

// Figures of the whole run, for its summary; written by the metrics actor once per step, in one
// piece, so that its next life goes on from there; read when it has ended.
struct run_totals {
  uint64_t steps = 0;  // of this process
  uint64_t batches = 0;
  int64_t tokens = 0;
  double loss = 0;         // of the last step
  double loss_smooth = 0;  // over about the last 20 steps, as the progress line shows it
  double accept_len = 0;   // likewise
  uint64_t skipped_steps = 0;
  uint64_t dropped = 0;
  uint64_t captured = 0;   // batches that a target made
  uint64_t from_disk = 0;  // batches read from kept hidden states
  uint64_t moved_bytes = 0;
  uint64_t whole_bytes = 0;
  double seconds = 0;                        // from the first job to the last commit
  uint64_t evaluated_step = 0;               // of the last evaluation written
  std::optional<double> tau, held_out_loss;  // of that one
  save_counts saves;
  int64_t began_ns = 0;
  int64_t last_ns = 0;                           // of the last commit
  double tokens_smooth = 0, seconds_smooth = 0;  // per step, over about the last 20
};

// Time spent per cause between two looks at the mailboxes.
struct wait_shares {
  double targets_wait = 0;   // for jobs or slots, of the time of all targets
  double drafters_wait = 0;  // for batches, of the time of all drafters
  // Each cause by itself, likewise.
  double target_job = 0, target_slot = 0;
  double drafter_batch = 0, drafter_peers = 0, drafter_go = 0;
  double target_busy_s = 0;  // since the start of the run
  double drafter_busy_s = 0;
  int64_t targets = 0;  // not retired
  uint64_t bytes_in_flight = 0;
  uint64_t restarts = 0;  // of all actors
};

class wait_meter {
public:
  explicit wait_meter(std::shared_ptr<mailbox_registry> registry);
  // Over the time since the last look, or since the one before if that was a moment ago: shares of
  // single short steps would jump about.
  const wait_shares& look();

private:
  using times = std::array<int64_t, static_cast<size_t>(activity::count)>;  // [activity]

  std::shared_ptr<mailbox_registry> registry_;
  int64_t last_ns_;
  times target_ns_{}, drafter_ns_{};  // of all lanes, at the last look
  wait_shares shares_;
};

struct metrics_options {
  std::filesystem::path file;  // metrics.jsonl; empty: none
  uint64_t first_step = 0;
  uint64_t total_steps = 0;
  uint64_t noted_evaluation = 0;  // step of the last one that is in the file
  uint64_t capture_steps =
      0;  // the first epoch's, where later ones read kept hidden states; else 0
  uint32_t drafters = 1;
  loss_terms terms;
  std::vector<std::shared_ptr<sink_thread>> sinks;
  // Operations of a batch in a target and in a drafter, and of all lanes a second at best; 0: not
  // known.
  double target_flops = 0, drafter_flops = 0, peak_flops = 0;
  std::shared_ptr<std::atomic<uint64_t>> steps;  // committed, for the inspector
  std::shared_ptr<run_totals> totals;
  bool profile = false;
};

struct metrics_state {
  static inline const char* name = "metrics";
  metrics_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  std::multimap<uint64_t, caf::typed_response_promise<uint64_t>> flushes;  // by step
  std::optional<jsonl_writer> writer;
  std::optional<wait_meter> waits;
  bool sink_failed = false;
  std::optional<double> accuracy;  // when it was last measured
};

metrics_actor spawn_metrics(caf::actor_system& system,
                            actor_identity identity,
                            metrics_options options);

}  // namespace dflash

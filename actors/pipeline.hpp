// Builds the pipeline out of plain parts, runs it to its end, and gives the outcome back. Knows
// nothing of configuration files and model folders: bin/ brings the parts, tests bring small ones.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/drafter_work.hpp"
#include "actors/evaluator.hpp"
#include "actors/hidden_shape.hpp"
#include "actors/metrics.hpp"
#include "actors/postprocess.hpp"
#include "actors/restart_policy.hpp"
#include "actors/run_watch.hpp"
#include "actors/runtime/fault_points.hpp"
#include "actors/runtime/limits.hpp"
#include "actors/runtime/network.hpp"
#include "actors/save_book.hpp"
#include "actors/stage_record.hpp"
#include "actors/target_forward.hpp"
#include "data/batches.hpp"
#include "data/hidden_store.hpp"
#include "data/step_plan.hpp"
#include "messages/node_actors.hpp"
#include "model/captured_states.hpp"
#include "model/loss_statistics.hpp"

namespace dflash {

// A lane of another host.
struct away_lane {
  std::shared_ptr<const lane_place> place;  // null: it is here, nothing else counts
  std::function<void()> begin;              // as target_options'
};

struct pipeline_parts {
  std::shared_ptr<const batch_source> source;
  std::optional<step_plan> plan;
  uint64_t first_step = 0;  // committed before this process
  uint64_t saved_step = 0;  // of the checkpoint it goes on from
  uint64_t skipped_steps = 0;
  loss_statistics losses;  // of the steps before
  std::vector<uint64_t> dropped;

  std::vector<capture_function> targets;  // [N]
  std::vector<drafter_work> drafters;     // [M], equal weights; rank 0 saves
  std::function<bool(const std::vector<at::Tensor>&)> finite = all_finite;  // of each hand-over
  int64_t target_threads = 1;
  int64_t drafter_threads = 1;
  // [N] and [M]: where `targets` give their states and `drafters` have their weights; empty: all on
  // the CPU. Lanes of other hosts are on the CPU here.
  std::vector<at::Device> target_devices, drafter_devices;

  hidden_shape shape;
  at::ScalarType drafter_dtype = at::kFloat;
  pipeline_limits limits;
  std::shared_ptr<hidden_store> store;  // null: not kept
  hidden_reader read_hidden;            // captured states in the place of targets (N = 0), or empty
  double noise = 0;
  uint64_t seed = 0;
  int64_t window = 0;  // widest of the drafter's layers; 0: a full one
  int64_t block_size = 0;

  save_options saves;  // its total_steps and first_step are filled in
  // Puts evaluations on disk and names the best; in the checkpointer's thread. May be empty.
  std::function<void(const evaluation_record&)> record;
  std::function<evaluation_work()> evaluate;  // empty: saves.eval_every is 0
  std::function<void()> give_up_evaluation;   // as coordinator_options'
  int64_t eval_threads = 1;
  double skip_spikes = 0;  // standard deviations above the mean loss; 0: off

  std::vector<away_lane> targets_away;   // [N], or empty: all are here
  std::vector<away_lane> drafters_away;  // [M], likewise
  restart_options restart;
  restart_options restart_away;                     // of lanes of other hosts
  std::chrono::milliseconds stage_deadline{10000};  // of each stage of the shutdown
  std::chrono::milliseconds stall_floor{60000};     // no commit for less is never a stall

  std::filesystem::path metrics_file;
  uint64_t noted_evaluation = 0;  // step of the last one that is in that file
  uint64_t metrics_every = 8;
  uint64_t profile_interval = 0;       // steps; 0: no tables
  bool profile = false;                // without tables too: for what the result says
  std::optional<trace_options> trace;  // unset: none
  std::vector<std::shared_ptr<stage_timer>> target_stages;  // [N] of what is inside of `targets`
  loss_terms terms;                                         // which ones are reported
  bool progress = true;                                     // a line on stderr
  std::vector<metrics_sink> sinks;
  double target_flops = 0, drafter_flops = 0, peak_flops = 0;  // as in metrics_options
  std::shared_ptr<run_watch> watch;                            // null: nobody looks
  std::string run;                                             // name for the inspector
  std::function<std::string()> details;  // for its dump: what the run is; any thread
  // Publishes the inspector: before anything starts, and again in each of its later lives. Empty:
  // no inspector.
  std::function<void(const run_inspector_actor&)> publish;
  node_door_actor door = {};  // where nodes that join are expected; invalid: nowhere
  // Called once with a function, safe in any thread, that asks for an orderly stop.
  std::function<void(std::function<void()>)> on_started;
  // For tests. Called at named places of every actor's work, in its thread; throws to end it.
  fault_points::function faults;
  // For tests. Called with all actors at the start and whenever one of them has changed, in the
  // coordinator's thread. Handles that are kept must go before the actor system does: a detached
  // actor's thread lives as long as they do.
  std::function<void(const std::shared_ptr<const pipeline_links>&)> on_links;
};

struct pipeline_result {
  run_outcome outcome;
  run_totals totals;
  std::vector<mailbox_report> mailboxes;  // at the end, peaks included
  std::vector<sink_view> sinks;
  actor_profile stages;  // of the whole run; empty: it was off
};

/// Configuration of an actor system as the pipeline needs it: shared work queue, as many workers as
/// cores, fair turns, message types registered. `with_network`: load the middleman.
class pipeline_system_config : public caf::actor_system_config {
public:
  /// caf_options: settings of CAF's own over these, "scheduler.max-threads=4". Throws error where
  /// CAF refuses them.
  explicit pipeline_system_config(bool with_network,
                                  const std::vector<std::string>& caf_options = {});
  /// With the times and certificates of these.
  explicit pipeline_system_config(const network_settings& network,
                                  const std::vector<std::string>& caf_options = {});

private:
  void set_up(const network_settings* network, const std::vector<std::string>& caf_options);
};

/// Blocks until all actors have ended, or have been given up (outcome.stuck). Throws what `publish`
/// throws, before anything runs.
pipeline_result run_pipeline(caf::actor_system& system, pipeline_parts parts);

}  // namespace dflash

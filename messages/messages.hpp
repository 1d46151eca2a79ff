// What the actors tell each other: plain structs, one per event. All but system_report stay inside
// one process (they carry handles and shared pointers; CAF may not serialise them). k is the number
// of a batch, s that of an optimizer step, both from 0 over the whole run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/stage_timer.hpp"
#include "messages/bits.hpp"
#include "messages/tensor_handle.hpp"

namespace dflash {

struct batch;              // data/batches.hpp
struct step_sums;          // model/loss.hpp
struct replica_state;      // model/replica_state.hpp
struct pipeline_links;     // messages/actors.hpp
struct evaluation;         // model/evaluation_history.hpp
class evaluation_history;  // model/evaluation_history.hpp
class slot_pool;           // device/slot_pool.hpp

// ---- life of the pipeline -----------------------------------------------------------------------

// To every actor when all of them exist, which breaks the circle of handles, and again with a fresh
// copy whenever one is lost or has been restarted. A handle that is invalid in it is down.
struct start_run {
  std::shared_ptr<const pipeline_links> links;
};

// To the coordinator, from whoever caught the signal: finish the open step, save, stop.
struct stop_request {};

// To the dispatcher: hand out nothing at or after end_k.
struct stop_at {
  uint64_t end_k = 0;
};

// To the coordinator from itself: this stage of the shutdown should be over.
struct stage_deadline {
  uint32_t stage = 0;
};

// Dispatcher to coordinator: no restart can help, end the run with this reason.
struct give_up {
  std::string reason;
};

// To the coordinator from itself: the back-off of a group of actors is over.
struct restart_group {
  uint32_t group = 0;
};

// To the coordinator from itself: has anything been committed since the last one?
struct watch_tick {};

enum class run_status { completed, stopped, failed };

// Saves of this process; to metrics whenever one of them has ended.
struct save_counts {
  uint64_t written = 0;
  uint64_t failed = 0;  // the records of evaluations among them
  uint64_t waited = 0;  // the next one was due before one was on disk: training waited
  int64_t waited_ns = 0;
  int64_t copied_ns = 0;   // in the drafter's step, over all of them
  int64_t written_ns = 0;  // beside training
};

// From the coordinator to whoever started the run, last of all.
struct run_outcome {
  run_status status = run_status::failed;
  uint64_t steps = 0;              // committed, over the whole run
  uint64_t saved_step = 0;         // of the newest checkpoint; 0: none
  std::string reason;              // of a failure: which actor, why; of an early stop
  bool stopped_early = false;      // completed, since evaluations became no better
  std::vector<std::string> stuck;  // actors that did not end when asked: their threads still run
  save_counts saves;
  std::shared_ptr<const evaluation_history> evaluations;  // of the whole run; null: none
  int64_t eval_waited_ns = 0;                             // the go waited for an evaluation
};

// ---- tokens -------------------------------------------------------------------------------------

// Dispatcher to loader: the right to send so many more batches. They follow those of the credit
// before; to a restarted loader first_k says where it goes on.
struct load_credit {
  uint64_t first_k = 0;
  uint32_t batches = 0;
};

// Dispatcher to loader: make batch k again, before anything else.
struct load_again {
  uint64_t k = 0;
};

// Loader to dispatcher: batch k is there.
struct batch_ready {
  std::shared_ptr<const batch> tokens;
  bool kept = false;  // its hidden states are on disk
};

// ---- hidden states ------------------------------------------------------------------------------

// A producer of hidden states, by number: targets 0 .. N-1, then the loader as reader of kept ones.
struct lane_free {
  uint32_t lane = 0;
};

// Dispatcher to a producer: room at the drafter is reserved, make the hidden states of this batch.
struct capture_job {
  std::shared_ptr<const batch> tokens;
  uint32_t lane = 0;                // who works on it
  uint32_t drafter = 0;             // k mod M
  uint32_t life = 0;                // of the drafter; another one's: nobody wants the result
  uint32_t epoch = 0;               // of the reserved credit
  std::shared_ptr<slot_pool> room;  // where the reserved slot is
  uint32_t attempt = 0;             // 1: made again after a non-finite value
  bool kept = false;                // read from disk instead
};

// Producer to its postprocess.
struct captured {
  capture_job job;
  tensor_handle hidden;
  int64_t capture_ns = 0;
};

// Postprocess to its producer: the capture slot is free again.
struct slot_credit {
  uint64_t k = 0;
};

// Postprocess to drafter k mod M. Without a handle: the batch was dropped, it adds nothing to
// gradient and weight sum.
struct hidden_batch {
  std::shared_ptr<const batch> tokens;
  tensor_handle hidden;
  uint32_t epoch = 0;
  bool kept = false;         // read from disk
  uint64_t moved_bytes = 0;  // rows that some anchor sees or the loss needs
  uint64_t whole_bytes = 0;  // all rows
};

// Postprocess to dispatcher: batch k is on its way to its drafter.
struct delivered {
  uint64_t k = 0;
  uint32_t epoch = 0;  // as in the job
};

// Postprocess to dispatcher: NaN or infinity in what the producer made.
struct not_finite {
  capture_job job;
};

// Dispatcher to coordinator: batch k was not finite twice and adds nothing; part of the commit
// record.
struct batch_dropped {
  uint64_t k = 0;
};

// Loader to dispatcher: kept hidden states are missing or damaged, a target has to make them.
struct kept_missing {
  capture_job job;
};

// ---- credit -------------------------------------------------------------------------------------

// Drafter to dispatcher, at its start and to each new dispatcher: the limit of its mailbox, and
// what it has of the batches that are not committed. Older grants are void.
struct room_grant {
  uint32_t consumer = 0;
  uint32_t life = 0;
  uint32_t epoch = 0;  // rises over all lives
  std::shared_ptr<slot_pool> slots;
  uint64_t limit_bytes = 0;
  uint32_t limit_batches = 0;
  uint64_t trained_end_k = 0;  // its own batches below are trained
  std::vector<uint64_t> held;  // waiting in its mailbox, room taken
};

// Drafter to dispatcher: batch k is trained and its slot is free.
struct credit_return {
  uint32_t consumer = 0;
  uint32_t epoch = 0;
  uint64_t k = 0;
};

// Fuse of a mailbox to the dispatcher: a batch came without room for it and was refused.
struct refused_batch {
  uint32_t consumer = 0;
  uint64_t k = 0;
};

// ---- steps --------------------------------------------------------------------------------------

// A step is tried again when a drafter has died before its go: what was exchanged under an older
// attempt is void. Attempts are counted over the whole run.

// Drafter to drafters (itself included): its sums over the batches of step s.
struct step_part {
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t attempt = 0;
  tensor_handle gradient;  // one flat [P] fp32, unnormalised; untouched until `go`
  f64_bits weight_sum;
};

// Sums of one batch, from its drafter by way of the coordinator to metrics, with the step.
struct batch_report {
  uint64_t k = 0;
  uint32_t drafter = 0;
  bool kept = false;  // as in hidden_batch
  uint64_t moved_bytes = 0;
  uint64_t whole_bytes = 0;
  int64_t tokens = 0;     // of real documents
  bool measured = false;  // accuracies too
  bool dropped = false;
  std::shared_ptr<const step_sums> sums;
};

// Drafter to coordinator: gradient and weight sum of step s are reduced here; ready to update.
struct step_reduced {
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t attempt = 0;
  std::vector<batch_report> reports;  // of its own batches, by rising k
};

// Coordinator to drafters: all have reduced step s, update now. From here on the step is done.
struct step_go {
  uint64_t step = 0;
  uint32_t attempt = 0;
  bool skip = false;  // the schedule advances, nothing else
};

// Coordinator to the drafters that are left before another one joins them: a new attempt. Drop what
// was exchanged for the open step s, keep its gradient, exchange nothing before all drafters are
// there. Answered by replica_held.
struct step_hold {
  uint64_t step = 0;
  uint32_t attempt = 0;
};

// Drafter to coordinator: nothing of an older attempt is held here any more. The state is a view of
// its memory, right until its next update.
struct replica_held {
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t attempt = 0;
  std::shared_ptr<const replica_state> state;
};

// In a later life of a drafter: it has the state after `step` steps. From a checkpoint: to the
// coordinator. From another replica: to that one, which passes it on; if it still does, it was
// alive, and its memory good, when the copy was complete.
struct replica_ready {
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t life = 0;
};

// Why a step changes no weights.
enum class skip_cause : uint8_t { none, no_weight, not_finite, loss_spike };
const char* skip_cause_name(skip_cause which);

// Drafter to coordinator: weights are updated.
struct step_committed {
  uint64_t step = 0;
  uint32_t rank = 0;
  f64_bits grad_norm;
  f64_bits rate;
  f64_bits update_norm;
  bool skipped = false;
};

// Coordinator to dispatcher, metrics, profiler: step s is committed on all drafters.
struct step_done {
  uint64_t step = 0;
  uint64_t first_k = 0;
  uint64_t end_k = 0;
  uint64_t epoch = 0;
  f64_bits grad_norm;
  f64_bits rate;
  f64_bits update_norm;
  bool skipped = false;
  skip_cause skipped_for = skip_cause::none;
  bool has_loss_z = false;
  f64_bits loss_z;     // standard deviations above the mean loss of the steps before
  bool again = false;  // was committed before, and is done again from a checkpoint
  std::shared_ptr<const std::vector<batch_report>> reports;  // of all its batches, by rising k
};

// ---- seeing -------------------------------------------------------------------------------------

// Metrics to coordinator: the line of step s is written.
struct step_noted {
  uint64_t step = 0;
};

// Metrics to coordinator: the line of the evaluation at this step is written, and those before it.
struct evaluation_noted {
  uint64_t step = 0;
};

// To metrics: write out everything up to step s, then answer.
struct flush_metrics {
  uint64_t step = 0;
};

// Of one wait of an actor, by its cause.
struct wait_span {
  const char* what = "";  // "waiting for a job": a literal
  int64_t begin_ns = 0, end_ns = 0;
};

// To the profiler: what an actor did for one batch, or for one step, and what it waited for before.
struct stage_report {
  static constexpr uint64_t none = UINT64_MAX;

  std::string actor;     // "target_forward 0"
  uint64_t k = none;     // of the batch
  uint64_t step = none;  // that it committed
  uint32_t rank = 0;     // of the drafter that committed it
  std::vector<stage_span> spans;
  std::vector<wait_span> waits;
};

// ---- checkpoints --------------------------------------------------------------------------------

// Coordinator to drafter 0: copy what is needed to go on after `steps` committed steps.
struct save_request {
  uint64_t steps = 0;
  uint64_t next_k = 0;
  std::vector<uint64_t> dropped;  // k of all dropped batches so far
  uint64_t skipped_steps = 0;
  std::vector<uint64_t> kept_steps;  // checkpoints that must not be removed after it
  uint64_t loss_count = 0;           // of loss_statistics
  f64_bits loss_mean, loss_variance;
};

// Drafter 0 to checkpointer: the copy, behind the function that writes it (blocks; throws where the
// disk refuses).
struct snapshot_taken {
  uint64_t steps = 0;
  int64_t copied_ns = 0;
  std::shared_ptr<const std::function<void()>> write;
};

// Drafter 0 to coordinator: the copy is made and on its way to the checkpointer.
struct snapshot_made {
  uint64_t steps = 0;
};

// Checkpointer to coordinator, or drafter 0 if it could not make the copy. A failed save does not
// end the run: older checkpoints stand.
struct save_done {
  uint64_t steps = 0;
  bool good = false;
  std::string error;
  int64_t copied_ns = 0;
  int64_t written_ns = 0;
};

// Coordinator to evaluator: the checkpoint after so many steps is on disk.
struct evaluate_request {
  uint64_t steps = 0;
};

// Evaluator to coordinator. Without a result: it cannot be made.
struct evaluated {
  uint64_t steps = 0;
  std::shared_ptr<const evaluation> result;
  std::string error;
};

// Coordinator to checkpointer: put the evaluations on disk, let `best` point to the best one.
struct evaluation_record {
  std::shared_ptr<const evaluation_history> history;
  std::vector<uint64_t> kept_steps;  // as in save_request
};

// Checkpointer to coordinator; empty: it is on disk.
struct record_done {
  std::string error;
};

// Coordinator to metrics: one more evaluation of the run.
struct evaluation_note {
  std::shared_ptr<const evaluation_history> history;
  uint64_t index = 0;  // in it
};

// ---- inspector: leaves the process --------------------------------------------------------------

struct mailbox_report {
  std::string actor;
  std::string where;  // of a lane of another host: "nodeB/cpu:0, answers"; empty: here
  std::string state;  // "computing", "waiting for a batch", ...
  int64_t state_ns = 0;
  int64_t depth = 0;
  int64_t peak_depth = 0;
  uint64_t bytes = 0;
  uint64_t limit_bytes = 0;  // 0: carries no tensors
  uint64_t peak_bytes = 0;
  uint64_t handled = 0;
  uint64_t refused = 0;  // by the fuse
  int64_t wait_ns = 0;   // sum over messages, from arrival to service
  int64_t service_ns = 0;
  int64_t alive_ns = 0;
  uint32_t restarts = 0;
  int64_t wait_p50_ns = 0;
  int64_t wait_p99_ns = 0;
  int64_t service_p50_ns = 0;
  int64_t service_p99_ns = 0;
  int64_t credits = -1;           // batches that it may still send or be sent; -1: it has no say
  std::vector<uint64_t> held;     // batches here, rising
  std::vector<int64_t> spent_ns;  // [activity] time spent computing, waiting for a job, ...
};

struct system_report {
  std::string run;   // its folder
  std::string node;  // "host:pid"
  int64_t uptime_ns = 0;
  uint64_t steps = 0;
  uint64_t total_steps = 0;
  std::vector<mailbox_report> rows;
};

}  // namespace dflash

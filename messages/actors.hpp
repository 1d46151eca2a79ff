// All actors of the pipeline, by interface. How a batch flows:
//
//   loader --batch_ready--> dispatcher --capture_job--> target_forward xN --captured--> postprocess
//   xN
//     ^------load_credit------' ^  ^  ^------lane_free-------' ^------slot_credit---------'  |
//     '--capture_job (kept)-----'  '--credit_return-- drafter_train xM <-----hidden_batch-----'
//                                                     |  ^ step_part (between drafters)
//          step_reduced, step_committed, replica_held v  | step_go, step_hold
//                                                   coordinator --step_done--> metrics, profiler
#pragma once

#include <caf/all.hpp>

#include <vector>

#include "messages/messages.hpp"
#include "messages/type_ids.hpp"

namespace dflash {

// clang-format off

// Run state, supervision, commits, decision to save, orderly stop. Scheduled.
using coordinator_actor = caf::typed_actor<
    // begins; run_outcome goes to the actor that it was spawned for, last of all
    caf::reacts_to<start_run>,
    // finish the open step, save, stop
    caf::reacts_to<stop_request>,
    // a drafter holds the reduced gradient of a step
    caf::reacts_to<step_reduced>,
    // a drafter has updated its weights
    caf::reacts_to<step_committed>,
    // a drafter waits for one that comes back, whose state it has
    caf::reacts_to<replica_held>,
    // a drafter is back
    caf::reacts_to<replica_ready>,
    // a batch adds nothing: goes into the commit record
    caf::reacts_to<batch_dropped>,
    // too many batches in a row were dropped
    caf::reacts_to<give_up>,
    // the copy for a checkpoint is made
    caf::reacts_to<snapshot_made>,
    // a checkpoint is on disk, or is not
    caf::reacts_to<save_done>,
    // figures of a checkpoint
    caf::reacts_to<evaluated>,
    // evaluations are on disk, or are not
    caf::reacts_to<record_done>,
    // metrics has written a step: its report need not be kept
    caf::reacts_to<step_noted>,
    // metrics has written an evaluation: the run may end
    caf::reacts_to<evaluation_noted>,
    // to itself: start a group of actors again
    caf::reacts_to<restart_group>,
    // to itself: look whether the run stands still
    caf::reacts_to<watch_tick>,
    // to itself: a stage of the shutdown took too long
    caf::reacts_to<stage_deadline>>;

// Makes batches ahead of their use, within its credit; reads kept hidden states. Detached (disk).
using loader_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // may send so many more batches
    caf::reacts_to<load_credit>,
    // make this batch again, first
    caf::reacts_to<load_again>,
    // read the kept hidden states of this batch
    caf::reacts_to<capture_job>,
    // its postprocess has handed a slot on
    caf::reacts_to<slot_credit>,
    // to itself: one more batch
    caf::reacts_to<next_atom>>;

// State of every batch in flight, credit ledgers, the shared pool of jobs. Scheduled.
using dispatcher_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // a batch is loaded
    caf::reacts_to<batch_ready>,
    // a producer asks for work
    caf::reacts_to<lane_free>,
    // hidden states are on their way to the drafter
    caf::reacts_to<delivered>,
    // hidden states were not finite: make them again once, then drop the batch
    caf::reacts_to<not_finite>,
    // kept hidden states cannot be read: make them
    caf::reacts_to<kept_missing>,
    // a drafter opens its mailbox
    caf::reacts_to<room_grant>,
    // a drafter has trained a batch
    caf::reacts_to<credit_return>,
    // a mailbox refused a batch
    caf::reacts_to<refused_batch>,
    // a step is committed: forget its batches
    caf::reacts_to<step_done>,
    // hand out nothing from this k on
    caf::reacts_to<stop_at>,
    // credits, lanes that ask, batches in flight, as text
    caf::replies_to<describe_atom>::with<std::string>>;

// One frozen target on one device: captures the tapped states of a batch. Detached.
using target_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // run the target on this batch
    caf::reacts_to<capture_job>,
    // its postprocess has handed a slot on
    caf::reacts_to<slot_credit>>;

// One per producer: checks, keeps, casts, adds noise, moves to the drafter. Detached.
using postprocess_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // fresh hidden states
    caf::reacts_to<captured>,
    // its own fuse: a message came without room for it
    caf::reacts_to<refused_batch>>;

// One replica of the drafter. Detached.
using drafter_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // a batch to train on, in any order; trained in order of k
    caf::reacts_to<hidden_batch>,
    // gradient and weight sum of a replica
    caf::reacts_to<step_part>,
    // all replicas have reduced: update
    caf::reacts_to<step_go>,
    // another drafter comes back: drop its part of the open step, show your state
    caf::reacts_to<step_hold>,
    // a copy of its state is complete: for the coordinator
    caf::reacts_to<replica_ready>,
    // copy what a checkpoint needs
    caf::reacts_to<save_request>,
    // its own fuse: a batch came without room for it
    caf::reacts_to<refused_batch>,
    // to itself: train one batch
    caf::reacts_to<next_atom>>;

// Writes checkpoints beside training, keeps and removes them. Detached (disk).
using checkpointer_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // write this one
    caf::reacts_to<snapshot_taken>,
    // write evaluations, point `best` at the best
    caf::reacts_to<evaluation_record>>;

// Held-out figures of checkpoints, beside training. Detached.
using evaluator_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // evaluate the drafter of this checkpoint
    caf::reacts_to<evaluate_request>,
    // to itself: one more piece of it
    caf::reacts_to<next_atom>>;

// Running sums, progress line, metrics.jsonl. Scheduled; never stops training.
using metrics_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // a step is committed; with the sums of its batches
    caf::reacts_to<step_done>,
    // a checkpoint is evaluated
    caf::reacts_to<evaluation_note>,
    // how saving goes
    caf::reacts_to<save_counts>,
    // write everything up to this step; answers with the step when it is on disk
    caf::replies_to<flush_metrics>::with<uint64_t>>;

// Times of stages by actor and name, printed each profile.interval steps; the trace. Scheduled, or
// detached if it writes a trace.
using profiler_actor = caf::typed_actor<
    // stages and waits of one actor
    caf::reacts_to<stage_report>,
    // a step is committed
    caf::reacts_to<step_done>>;

// Live view of all mailboxes of its process, published on a port. Scheduled.
using inspector_actor = caf::typed_actor<
    caf::reacts_to<start_run>,
    // the table of mailboxes; needs no other actor's help
    caf::replies_to<inspect_atom>::with<system_report>,
    // versions, configuration, last warnings, the dispatcher's books if it answers: text for a bug
    // report
    caf::replies_to<dump_atom>::with<std::string>>;

// clang-format on

// Who is who. Shared by all, immutable once sent with start_run; each actor drops it when it ends
// or gets a newer one. Messages to an invalid handle are dropped.
struct pipeline_links {
  coordinator_actor coordinator;
  loader_actor loader;
  dispatcher_actor dispatcher;
  std::vector<target_actor> targets;           // [N]
  std::vector<postprocess_actor> postprocess;  // [N], and one for the loader if states are kept
  std::vector<drafter_actor> drafters;         // [M]
  std::vector<uint32_t> drafter_lives;         // [M] 0: the first
  checkpointer_actor checkpointer;
  evaluator_actor evaluator;  // invalid: nothing is evaluated
  metrics_actor metrics;
  profiler_actor profiler;    // invalid: profiling is off
  inspector_actor inspector;  // invalid: nobody may look
};

}  // namespace dflash

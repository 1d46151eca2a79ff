// The coordinator's parts, between themselves: each of them handles some of its messages, and works
// on the one state. For coordinator*.cpp only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "actors/coordinator.hpp"

namespace dflash::coordination {

using self_ptr = metered_ptr<coordinator_actor, coordinator_state>;

// coordinator.cpp: start and stop.
void enter_stage(self_ptr self, uint32_t stage);
void shut_down(self_ptr self, run_status status, std::string reason = {});

// coordinator_steps.cpp: commits.
// All have reduced: the go, unless a save or an evaluation holds it.
void try_go(self_ptr self);
void step_is_done(self_ptr self, const step_done& done);
void on_reduced(self_ptr self, const step_reduced& m);
void on_committed(self_ptr self, const step_committed& m);
void on_noted(self_ptr self, const step_noted& m);
void on_evaluation_noted(self_ptr self, const evaluation_noted& m);
bool evaluations_are_noted(const coordinator_state& s);

// coordinator_saves.cpp: checkpoints.
void begin_save(self_ptr self);
// Asks metrics to write before the save that is due; again in its next life.
void flush_before_save(self_ptr self);
// Asks drafter 0 for the save that is due, if metrics is ready and the disk free.
void try_save(self_ptr self);
// Drafter 0 died: a copy that it was to make is asked for again, or missed.
void saver_lost(self_ptr self);
// The run goes back to a checkpoint.
void forget_saves(self_ptr self);
void on_saved(self_ptr self, const save_done& m);
// Nobody will write the save at work any more.
void lose_save(self_ptr self, const std::string& why);
// Ends the run if it has come to its end and all is on disk.
void end_if_done(self_ptr self);

// coordinator_evaluations.cpp: held-out figures, early stopping.
void try_evaluation(self_ptr self);
void on_evaluated(self_ptr self, const evaluated& m);
void on_recorded(self_ptr self, const record_done& m);
// All that metrics should know of evaluations, to a new one.
void note_evaluations(self_ptr self, uint64_t first);
// The end that patience sets to the run, if it does.
void apply_patience(self_ptr self);
void lose_evaluator(self_ptr self);

// coordinator_supervision.cpp: deaths, restarts, retirement.
void set_links(self_ptr self, std::shared_ptr<const pipeline_links> links);
void watch_group(self_ptr self, const pipeline_links& links, size_t index);
next_life life_now(const coordinator_state& s);
// Begins the next life of a group, and of those that start with it.
void start_again(self_ptr self, size_t index);
void restart_or_retire(self_ptr self, size_t index);
// Ends what is left of a group, and with the dispatcher all that work for it.
void end_group(self_ptr self, size_t index);
bool upstream_is_gone(const coordinator_state& s);
void on_down(self_ptr self, const caf::down_msg& m);
void on_restart(self_ptr self, const restart_group& m);

// coordinator_replicas.cpp: drafters that died and come back.
void replica_lost(self_ptr self, uint32_t rank);
void replica_may_join(self_ptr self, uint32_t rank);
void advance_replicas(self_ptr self);
void on_held(self_ptr self, const replica_held& m);
void on_ready(self_ptr self, const replica_ready& m);

// coordinator_watch.cpp: a run that stands still.
void note_commit(self_ptr self);
void begin_watch(self_ptr self);
void on_tick(self_ptr self);

}  // namespace dflash::coordination

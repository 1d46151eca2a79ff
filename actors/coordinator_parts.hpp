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
void send_go(self_ptr self);
void on_reduced(self_ptr self, const step_reduced& m);
void on_committed(self_ptr self, const step_committed& m);
void on_noted(self_ptr self, const step_noted& m);

// coordinator_saves.cpp: checkpoints.
void begin_save(self_ptr self);
void on_saved(self_ptr self, const save_done& m);

// coordinator_supervision.cpp: deaths, restarts, retirement.
void set_links(self_ptr self, std::shared_ptr<const pipeline_links> links);
void watch_group(self_ptr self, const pipeline_links& links, size_t index);
void on_down(self_ptr self, const caf::down_msg& m);
void on_restart(self_ptr self, const restart_group& m);

// coordinator_watch.cpp: a run that stands still.
void note_commit(self_ptr self);
void on_tick(self_ptr self);

}  // namespace dflash::coordination

// What the profiler gathers of a run: profiles, and the trace of a window of steps. Plain state,
// kept by who builds the pipeline, so that the profiler's next life goes on with it; used by one
// thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "actors/runtime/mailbox_stats.hpp"
#include "config/run_config.hpp"
#include "data/step_plan.hpp"
#include "messages/messages.hpp"
#include "observe/stage_profile.hpp"
#include "observe/trace.hpp"

namespace dflash {

struct trace_options {
  step_window window;  // steps from 1
  std::filesystem::path file;
};

class stage_record {
public:
  // trace: unset: none. plan: of the run.
  stage_record(std::optional<trace_options> trace, step_plan plan, uint32_t drafters);

  // registry: bytes and credits beside the stages.
  void add(const stage_report& m, const mailbox_registry& registry);

  actor_profile& recent() { return recent_; }            // since it was last cleared
  const actor_profile& whole() const { return whole_; }  // of the run

  // Writes the trace if there is one, it is not written yet, and either its last step is committed
  // on all drafters or `now` is asked for. Throws where the disk refuses.
  void write_trace(bool now);
  // Asked for, but no batch of its steps was seen, or the disk refused.
  bool lacks_trace() const { return trace_options_ && !written_; }

private:
  bool wants(const stage_report& m) const;
  void add_to_trace(const stage_report& m, const mailbox_registry& registry);
  void add_flows(const stage_report& m, int64_t at_ns);
  uint64_t last_step() const;  // of the window, from 0

  std::optional<trace_options> trace_options_;
  step_plan plan_;
  uint32_t drafters_;
  actor_profile recent_, whole_;
  trace trace_;
  std::set<uint64_t> begun_;  // batches that a loader made in the window
  struct place {
    std::string actor;
    int64_t at_ns = 0;
  };
  std::map<uint64_t, place> reached_;      // by k, of those not yet ended: where the last arrow is
  std::set<uint32_t> ranks_at_end_;        // drafters that have committed the last step
  std::map<std::string, double> counted_;  // last values of counters
  bool written_ = false;
};

}  // namespace dflash

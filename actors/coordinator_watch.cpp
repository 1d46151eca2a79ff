#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "actors/coordinator_parts.hpp"
#include "actors/runtime/mailbox_rows.hpp"
#include "observe/format.hpp"

namespace dflash::coordination {

constexpr std::chrono::seconds describe_timeout{2};
constexpr uint32_t ticks_to_stall = 8;
// Until the first commit no step has been measured: only a batch that takes an hour (with the
// default floor) from one delivery to the next is a stall then.
constexpr uint32_t ticks_to_first = 60 * ticks_to_stall;

namespace {

void next_tick(self_ptr self) {
  self->delayed_send(self, self->state.stall_limit() / ticks_to_stall, watch_tick{});
}

}  // namespace

void note_commit(self_ptr self) {
  coordinator_state& s = self->state;
  const int64_t now = now_ns();
  const int64_t before = std::exchange(s.last_commit_ns, now);
  if (before > 0) s.slowest_step_ns = std::max(s.slowest_step_ns, now - before);
}

// Time is counted in ticks: a process that was stopped and goes on has had one.
void begin_watch(self_ptr self) {
  next_tick(self);
}

namespace {

// The table of all actors to the log, then the end.
void on_stall(self_ptr self) {
  coordinator_state& s = self->state;
  const auto conclude_with = [self](const std::string& credits) {
    coordinator_state& state = self->state;
    const bool first = state.last_commit_ns == 0;
    const auto limit =
        duration_text(state.stall_limit() * (first ? ticks_to_first / ticks_to_stall : 1));
    const auto rows = rows_of(self->identity().registry->rows());
    spdlog::error(
        "nothing was committed for {}; all actors:\n{}{}", limit, mailbox_table(rows), credits);
    shut_down(
        self,
        run_status::failed,
        fmt::format("nothing was committed for {}, {}; the log has the table of all actors",
                    limit,
                    first ? "and no batch delivered, before the first step"
                          : "the slowest step before took " +
                                duration_text(std::chrono::nanoseconds(state.slowest_step_ns))));
  };
  self->request(s.links->dispatcher, caf::duration{describe_timeout}, describe_atom_v)
      .then(conclude_with, [=](const caf::error&) { conclude_with("the dispatcher is stuck\n"); });
}

}  // namespace

void on_tick(self_ptr self) {
  coordinator_state& s = self->state;
  if (s.shutdown_stage) return;
  // A checkpoint, or a drafter that comes back from one, takes as long as its disk needs, an
  // evaluation as long as it goes on.
  const bool for_disk = s.saves->is_writing() && (s.saves->waits_for_disk() || s.book->finished());
  const uint64_t evaluated = self->identity().registry->completed("evaluator");
  const bool first = s.last_commit_ns == 0;
  const uint64_t delivered = first ? self->identity().registry->completed("dispatcher") : 0;
  const bool quiet = s.book->steps() == s.steps_at_tick && !for_disk && s.replicas->all_train() &&
                     evaluated == std::exchange(s.evaluated_at_tick, evaluated) &&
                     delivered == std::exchange(s.delivered_at_tick, delivered);
  s.steps_at_tick = s.book->steps();
  s.quiet_ticks = quiet ? s.quiet_ticks + 1 : 0;
  if (s.quiet_ticks >= (first ? ticks_to_first : ticks_to_stall))
    on_stall(self);
  else
    next_tick(self);
}

}  // namespace dflash::coordination

// Where an actor reports how long its stages took and what it waited for. Given to constructors
// when the pipeline is built; off, everything costs one branch.
#pragma once

#include <memory>
#include <utility>

#include "actors/runtime/mailbox_stats.hpp"
#include "device/devices.hpp"
#include "device/stage_timer.hpp"
#include "messages/actors.hpp"

namespace dflash {

class stage_sink {
public:
  // The rank of who commits no batches of a step.
  static constexpr uint32_t nobody = UINT32_MAX;

  stage_sink() = default;  // off
  // on: `stats` of the same actor books its waits. `inner`: of what the lane computes; null: none.
  stage_sink(bool on, mailbox_stats& stats, std::shared_ptr<stage_timer> inner = nullptr)
      : timer_(inner ? std::move(inner) : std::make_shared<stage_timer>()) {
    if (!on) return;
    timer_->turn_on();
    stats.keep_waits();
  }

  // In the lane's thread, once it uses the device: times are the device's.
  void time(c10::Device device) {
    if (!is_on()) return;
    if (auto clock = clock_of(device)) timer_->use(std::move(*clock));
  }

  // In each new set of links; an invalid handle: the profiler is down.
  void use(const profiler_actor& profiler) { profiler_ = profiler; }

  bool is_on() const { return timer_ && timer_->is_on(); }
  // Times a scope, for the next report.
  [[nodiscard]] stage_timer::scope within(const char* name) {
    return timer_ ? timer_->within(name) : stage_timer::scope(nullptr, name, -1);
  }
  void mark(const char* name) {
    if (timer_) timer_->mark(name);
  }

  // What there is since the last report. Owner of `stats` only.
  void report(mailbox_stats& stats,
              uint64_t k,
              uint64_t step = stage_report::none,
              uint32_t rank = 0) {
    if (!is_on()) return;
    stage_report m{stats.name, k, step, rank, timer_->take(), stats.take_waits()};
    if (profiler_) caf::anon_send(profiler_, std::move(m));
  }

  // Of an actor that serves whole steps: what it did since the step before.
  void report_step(mailbox_stats& stats, uint64_t step) {
    report(stats, stage_report::none, step, nobody);
  }

private:
  std::shared_ptr<stage_timer> timer_;
  profiler_actor profiler_;
};

}  // namespace dflash

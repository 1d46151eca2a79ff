// Where components report how long a stage took. Off: one branch. Given to constructors when the
// pipeline is built.
#pragma once

#include "actors/runtime/mailbox_stats.hpp"
#include "messages/actors.hpp"

namespace dflash {

class stage_sink {
public:
  stage_sink() = default;  // off
  explicit stage_sink(profiler_actor profiler) : profiler_(std::move(profiler)) {}

  bool is_on() const { return static_cast<bool>(profiler_); }
  void report(stage which, int64_t ns) const {
    if (profiler_) caf::anon_send(profiler_, stage_time{which, ns});
  }

  // Times a scope.
  class timer {
  public:
    timer(const stage_sink& sink, stage which)
        : sink_(sink), which_(which), began_(sink.is_on() ? now_ns() : 0) {}
    ~timer() {
      if (sink_.is_on()) sink_.report(which_, now_ns() - began_);
    }
    timer(const timer&) = delete;
    timer& operator=(const timer&) = delete;

  private:
    const stage_sink& sink_;
    stage which_;
    int64_t began_;
  };
  timer time(stage which) const { return {*this, which}; }

private:
  profiler_actor profiler_;
};

}  // namespace dflash

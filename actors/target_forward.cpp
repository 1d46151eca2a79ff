#include "actors/target_forward.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "actors/runtime/lane_thread.hpp"
#include "config/error.hpp"
#include "device/slot_memory.hpp"
#include "messages/tensor_block.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<target_actor, target_state>;

void ask(self_ptr self) {
  target_state& s = self->state;
  self->stats().set_credits(
      static_cast<int64_t>(s.options.slots->slots() - s.options.slots->in_use()));
  if (s.asking) return;
  if (s.options.slots->in_use() >= s.options.slots->slots()) {
    self->stats().set_activity(activity::wants_slot);
    return;
  }
  s.asking = true;
  self->stats().set_activity(activity::wants_job);
  self->send(s.links->dispatcher, lane_free{self->identity().index});
}

void capture(self_ptr self, const capture_job& job) {
  target_state& s = self->state;
  s.asking = false;
  self->stats().set_activity(activity::computing);
  self->stats().hold(job.tokens->k);
  auto lease = s.options.slots->try_acquire();
  DFLASH_CHECK(lease.has_value(), "a target was given a job without a free slot");
  const int64_t began = now_ns();
  captured m;
  m.job = job;
  {
    const auto stage = s.stages.within("target forward");
    std::vector<at::Tensor> states = s.options.capture(*job.tokens);
    if (slot_memory* const memory = s.options.slots->memory())
      states = memory->fill(lease->slot(), states, 0, s.options.shape.dtype);
    m.hidden = make_tensor_handle(
        std::move(states), s.options.shape.last, std::move(*lease), mark(s.options.device));
  }
  m.capture_ns = now_ns() - began;
  self->fault("captured");
  DFLASH_CHECK(m.hidden.bytes() == s.options.shape.bytes(),
               "hidden states of another size than the limits count",
               m.hidden.bytes(),
               s.options.shape.bytes());
  s.stages.report(self->stats(), job.tokens->k);
  self->send(s.links->postprocess.at(self->identity().index), std::move(m));
  self->stats().let_go(job.tokens->k);
  ask(self);
}

}  // namespace

target_actor spawn_target(caf::actor_system& system,
                          runs_as how,
                          actor_identity identity,
                          target_options options) {
  return spawn_metered<target_actor, target_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> target_actor::behavior_type {
        if (how == runs_as::detached)
          set_up_lane_thread(fmt::format("target-{}", self->identity().index),
                             options.threads,
                             std::array{options.device});
        self->state.options = options;
        self->state.stages = stage_sink(options.profile, self->stats(), options.inner);
        self->state.stages.time(options.device);
        return {
            [=](const start_run& m) {
              const bool first = !self->state.links;
              self->state.links = m.links;
              self->state.stages.use(m.links->profiler);
              if (first && self->state.options.begin) self->state.options.begin();
              ask(self);
            },
            [=](const capture_job& m) { capture(self, m); },
            [=](const slot_credit&) { ask(self); },
        };
      });
}

}  // namespace dflash

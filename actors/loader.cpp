#include "actors/loader.hpp"

#include <utility>
#include <vector>

#include "actors/runtime/lane_thread.hpp"
#include "config/error.hpp"
#include "messages/tensor_block.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<loader_actor, loader_state>;

void go_on(self_ptr self) {
  loader_state& s = self->state;
  if (!s.links) return;  // credit may overtake the start
  const bool work = !s.again.empty() || (s.credit > 0 && s.next_k < s.options.end_k);
  if (work && s.links && !s.stepping) {  // the dispatcher's credit may overtake start_run
    s.stepping = true;
    self->send(self, next_atom_v);
  }
}

void make_one(self_ptr self) {
  loader_state& s = self->state;
  s.stepping = false;
  const auto k = s.take();
  if (!k) return;
  self->stats().set_activity(activity::computing);
  self->stats().hold(*k);
  batch_ready m;
  {
    const auto stage = s.stages.within("load batch");
    m.tokens = std::make_shared<const batch>(s.options.source->make(*k, s.order));
    m.kept = s.options.read || (s.options.store && s.options.store->has(m.tokens->row));
  }
  s.stages.report(self->stats(), *k);
  self->fault("made");
  self->stats().complete();
  self->send(s.links->dispatcher, std::move(m));
  self->stats().let_go(*k);
  self->stats().set_credits(s.credit);
  self->stats().set_activity(activity::idle);
  go_on(self);
}

void ask(self_ptr self) {
  loader_state& s = self->state;
  const bool free_slot = s.options.slots && s.options.slots->in_use() < s.options.slots->slots();
  if (s.asking || !free_slot) return;
  s.asking = true;
  self->send(s.links->dispatcher, lane_free{s.options.lane});
}

// False: the row is not kept any more. Captured states are there, or the run fails.
bool read_states(const loader_options& options, const batch& b, std::vector<at::Tensor>& into) {
  if (options.read) {
    options.read(b, into);
    return true;
  }
  auto parts = mutable_bytes_of(into);
  return options.store->get(b.row, parts);
}

void read_kept(self_ptr self, const capture_job& job) {
  loader_state& s = self->state;
  s.asking = false;
  self->stats().set_activity(activity::computing);
  self->stats().hold(job.tokens->k);
  auto lease = s.options.slots->try_acquire();
  DFLASH_CHECK(lease.has_value(), "the reader was given a job without a free slot");
  std::vector<at::Tensor> tensors = empty_hidden(s.options.shape);
  self->fault("reads");
  bool found = false;
  {
    const auto stage = s.stages.within("read kept states");
    found = read_states(s.options, *job.tokens, tensors);
  }
  s.stages.report(self->stats(), job.tokens->k);
  if (found) {
    captured m;
    m.job = job;
    m.hidden = make_tensor_handle(std::move(tensors), s.options.shape.last, std::move(*lease));
    self->send(s.links->postprocess.at(s.options.lane), std::move(m));
  } else {
    lease->release();
    self->send(s.links->dispatcher, kept_missing{job});
  }
  self->stats().let_go(job.tokens->k);
  self->stats().set_activity(activity::idle);
  ask(self);
}

}  // namespace

std::optional<uint64_t> loader_state::take() {
  if (!again.empty()) {
    const uint64_t k = again.front();
    again.pop_front();
    return k;
  }
  if (credit == 0 || next_k >= options.end_k) return std::nullopt;
  --credit;
  return next_k++;
}

loader_actor spawn_loader(caf::actor_system& system,
                          runs_as how,
                          actor_identity identity,
                          loader_options options) {
  return spawn_metered<loader_actor, loader_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> loader_actor::behavior_type {
        if (how == runs_as::detached) set_up_lane_thread("loader", 1);
        self->state.options = options;
        self->state.stages = stage_sink(options.profile, self->stats());
        self->state.next_k = options.first_k;
        return {
            [=](const start_run& m) {
              self->state.links = m.links;
              self->state.stages.use(m.links->profiler);
              ask(self);
              go_on(self);
            },
            [=](const load_credit& m) {
              loader_state& s = self->state;
              if (s.credit == 0) s.next_k = m.first_k;
              s.credit += m.batches;
              self->stats().set_credits(s.credit);
              go_on(self);
            },
            [=](const load_again& m) {
              self->state.again.push_back(m.k);
              go_on(self);
            },
            [=](const capture_job& m) { read_kept(self, m); },
            [=](const slot_credit&) { ask(self); },
            [=](next_atom) { make_one(self); },
        };
      });
}

}  // namespace dflash

#include "actors/drafter_train.hpp"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "actors/runtime/lane_thread.hpp"
#include "config/error.hpp"
#include "messages/tensor_block.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<drafter_actor, drafter_state>;

// Epochs of credit rise over all lives.
constexpr uint32_t epochs_of_a_life = 1U << 20U;

bool all_are_there(const pipeline_links& links) {
  return std::all_of(links.drafters.begin(), links.drafters.end(), [](const auto& drafter) {
    return static_cast<bool>(drafter);
  });
}

void send_part(self_ptr self) {
  drafter_state& s = self->state;
  s.part_sent = true;
  step_part part;
  part.step = s.order->open_step();
  part.rank = self->identity().index;
  part.attempt = s.exchange->attempt();
  self->stats().set_activity(activity::computing);
  {
    const auto stage = s.stages.within("gradient");
    const at::Tensor& gradient = s.options.work.gradient();
    part.gradient = make_tensor_handle({gradient}, false, {}, mark(s.options.device()));
  }
  part.weight_sum = s.weight_sum;
  for (const drafter_actor& drafter : s.links->drafters) self->send(drafter, part);
  self->stats().set_activity(activity::wants_peers);
}

// Decides what comes next; never computes.
void go_on(self_ptr self) {
  drafter_state& s = self->state;
  if (!s.links || s.stepping) return;
  if (s.order->finished()) {
    self->stats().set_activity(activity::idle);
  } else if (s.order->next() != nullptr) {
    s.stepping = true;
    self->send(self, next_atom_v);
  } else if (!s.order->own_part_is_done()) {
    self->stats().set_activity(activity::wants_batch);
  } else if (s.held || !all_are_there(*s.links)) {
    self->stats().set_activity(activity::wants_peers);
  } else if (!s.part_sent) {
    send_part(self);
  }
}

void give_back(self_ptr self, const hidden_batch& m) {
  drafter_state& s = self->state;
  self->stats().release(m.hidden.bytes());
  self->stats().let_go(m.tokens->k);
  m.hidden.release();
  self->send(s.links->dispatcher,
             credit_return{self->identity().index, s.credit_epoch, m.tokens->k});
}

void arrive(self_ptr self, const hidden_batch& m) {
  self->adopt_bytes();
  if (self->state.order->arrived(m))
    go_on(self);
  else
    give_back(self, m);
}

void train_one(self_ptr self) {
  drafter_state& s = self->state;
  s.stepping = false;
  const hidden_batch* next = s.order->next();
  if (next == nullptr) return;
  const hidden_batch m = *next;
  batch_report report;
  report.k = m.tokens->k;
  report.drafter = self->identity().index;
  report.tokens = m.tokens->doc_offsets.at(static_cast<size_t>(m.tokens->real_docs));
  report.measured = report.k % s.options.metrics_every == 0;
  report.dropped = !m.hidden;
  report.kept = m.kept;
  report.moved_bytes = m.moved_bytes;
  report.whole_bytes = m.whole_bytes;
  if (m.hidden) {
    self->stats().set_activity(activity::computing);
    const auto stage = s.stages.within("train batch");
    m.hidden->ready.wait();
    s.stages.mark("wait for the device");
    drafter_input input;
    input.taps = m.hidden->tensors;
    if (m.hidden->has_last) {
      input.last_hidden = input.taps.back();
      input.taps.pop_back();
    }
    input.tokens = m.tokens.get();
    step_sums sums = s.options.work.accumulate(input, report.measured, {});
    s.weight_sum += sums.weight_sum;
    report.sums = std::make_shared<const step_sums>(std::move(sums));
    self->fault("forward");
  }
  s.stages.report(self->stats(), m.tokens->k);
  s.order->trained();
  give_back(self, m);
  s.reports.push_back(std::move(report));
  go_on(self);
}

void reduce(self_ptr self, const step_part& part) {
  drafter_state& s = self->state;
  s.exchange->arrived(part);
  if (!s.order || s.order->finished()) return;  // before its start
  const uint64_t step = s.order->open_step();
  const std::vector<step_part> parts = s.exchange->complete(step);
  if (parts.empty()) return;
  self->stats().set_activity(activity::computing);
  {
    const auto stage = s.stages.within("reduce");
    std::vector<at::Tensor> gradients;
    s.reduced_weight = 0;
    for (const step_part& p : parts) {
      p.gradient->ready.wait();
      gradients.push_back(p.gradient->tensors.at(0));
      s.reduced_weight += p.weight_sum;
    }
    if (s.options.drafters == 1) {
      s.reduced = gradients[0];
    } else {
      if (!s.sum.defined()) s.sum = at::empty_like(gradients.at(self->identity().index));
      s.options.work.sum(gradients, s.sum);
      s.reduced = s.sum;
    }
    // Once all have said that they have reduced, each may write over its gradient.
    wait_for(s.options.device());
    self->fault("reduce");
  }
  s.exchange->done(step);
  self->stats().set_activity(activity::wants_go);
  self->send(s.links->coordinator,
             step_reduced{step, self->identity().index, s.exchange->attempt(), s.reports});
  self->fault("reduced");
}

void update(self_ptr self, const step_go& m) {
  drafter_state& s = self->state;
  DFLASH_CHECK(
      m.step == s.order->open_step() && m.attempt == s.exchange->attempt() && s.reduced.defined(),
      "a go for a step that is not reduced here",
      m.step);
  self->stats().set_activity(activity::computing);
  step_committed done;
  {
    const auto stage = s.stages.within("update");
    self->fault("update");
    const update_report report = s.options.work.update(s.reduced, s.reduced_weight, m.step, m.skip);
    done = {m.step,
            self->identity().index,
            report.grad_norm,
            report.lr,
            report.update_norm,
            report.skipped};
    self->fault("updated");
  }
  s.stages.report(self->stats(), stage_report::none, m.step, self->identity().index);
  s.reduced = at::Tensor();
  s.weight_sum = 0;
  s.reports.clear();
  s.part_sent = false;
  s.order->committed();
  self->send(s.links->coordinator, done);
  // Parts of the next step may be here already; the last of them is our own, which comes by
  // message.
  go_on(self);
}

void hold(self_ptr self, const step_hold& m) {
  drafter_state& s = self->state;
  DFLASH_CHECK(m.step == s.order->open_step(), "another step is open here", m.step);
  s.exchange->begin(m.attempt);
  s.reduced = at::Tensor();
  s.part_sent = false;
  s.held = true;
  wait_for(s.options.device());  // another replica's thread is going to read it
  self->send(s.links->coordinator,
             replica_held{m.step,
                          self->identity().index,
                          m.attempt,
                          std::make_shared<const replica_state>(s.options.work.state())});
  go_on(self);
}

void save(self_ptr self, const save_request& m) {
  drafter_state& s = self->state;
  self->stats().set_activity(activity::computing);
  self->fault("save");
  snapshot_taken taken;
  taken.steps = m.steps;
  const int64_t began = now_ns();
  std::string refused;
  {
    const auto stage = s.stages.within("snapshot");
    try {
      taken.write = std::make_shared<const std::function<void()>>(s.options.work.snapshot(m));
    } catch (const std::exception& e) {  // no memory for the copy
      refused = e.what();
    }
  }
  taken.copied_ns = now_ns() - began;
  if (taken.write) {
    self->send(s.links->checkpointer, std::move(taken));
    self->send(s.links->coordinator, snapshot_made{m.steps});
  } else {
    self->send(s.links->coordinator, save_done{m.steps, false, refused});
  }
  self->stats().set_activity(s.part_sent ? activity::wants_peers : activity::wants_batch);
  go_on(self);
}

// The state that this life begins with.
void begin_life(self_ptr self) {
  drafter_state& s = self->state;
  life_of_drafter& life = s.options.life;
  const uint32_t rank = self->identity().index;
  const bool copied = life.state != nullptr;
  if (life.restore)
    life.step = s.options.work.restore();
  else if (life.state)
    s.options.work.load_state(*life.state);
  life.state = nullptr;
  wait_for(s.options.device());  // the donor may write again
  s.credit_epoch = life.number * epochs_of_a_life;
  s.order.emplace(*s.options.plan, rank, s.options.drafters, life.step);
  if (!copied && !life.restore) return;
  self->fault("joined");
  const replica_ready ready{life.step, rank, life.number};
  if (copied)
    self->send(s.links->drafters.at(life.donor), ready);
  else
    self->send(s.links->coordinator, ready);
}

void start(self_ptr self, const start_run& m) {
  drafter_state& s = self->state;
  const auto before = std::exchange(s.links, m.links);
  s.stages.use(m.links->profiler);
  if (!before) begin_life(self);
  if (all_are_there(*m.links)) s.held = false;
  if (!before || before->dispatcher != m.links->dispatcher) {
    const std::shared_ptr<slot_pool>& slots = s.options.slots;
    self->send(m.links->dispatcher,
               room_grant{self->identity().index,
                          s.options.life.number,
                          ++s.credit_epoch,
                          slots,
                          slots->limit_bytes(),
                          static_cast<uint32_t>(slots->slots()),
                          s.order->trained_end_k(),
                          s.order->held()});
  }
  go_on(self);
}

}  // namespace

drafter_actor spawn_drafter(caf::actor_system& system,
                            runs_as how,
                            actor_identity identity,
                            drafter_options options) {
  return spawn_metered<drafter_actor, drafter_state>(
      system,
      how,
      std::move(identity),
      [how, options = std::move(options)](self_ptr self) -> drafter_actor::behavior_type {
        if (how == runs_as::detached)
          set_up_lane_thread(
              fmt::format("drafter-{}", self->identity().index), options.threads, options.devices);
        drafter_state& s = self->state;
        s.options = options;
        s.stages = stage_sink(options.profile, self->stats(), options.work.stages);
        s.stages.time(options.device());
        s.exchange.emplace(options.drafters, options.life.attempt);
        return {
            [=](const start_run& m) { start(self, m); },
            [=](const hidden_batch& m) { arrive(self, m); },
            [=](const step_part& m) { reduce(self, m); },
            [=](const step_go& m) { update(self, m); },
            [=](const step_hold& m) { hold(self, m); },
            [=](const replica_ready& m) { self->send(self->state.links->coordinator, m); },
            [=](const save_request& m) { save(self, m); },
            [=](const refused_batch& m) { self->send(self->state.links->dispatcher, m); },
            [=](next_atom) { train_one(self); },
        };
      });
}

}  // namespace dflash

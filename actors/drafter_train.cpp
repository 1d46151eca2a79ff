#include "actors/drafter_train.hpp"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "actors/runtime/lane_thread.hpp"
#include "config/error.hpp"
#include "device/collective.hpp"
#include "messages/tensor_block.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<drafter_actor, drafter_state>;

void send_part(self_ptr self) {
  drafter_state& s = self->state;
  s.part_sent = true;
  step_part part;
  part.step = s.order->open_step();
  part.rank = self->identity().index;
  part.gradient = make_tensor_handle({s.options.work.gradient()}, false, {});
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
    step_sums sums = s.options.work.accumulate(input, report.measured);
    s.weight_sum += sums.weight_sum;
    report.sums = std::make_shared<const step_sums>(std::move(sums));
  }
  s.stages.report(self->stats(), m.tokens->k);
  s.order->trained();
  give_back(self, m);
  self->send(s.links->metrics, report);
  s.reports.insert_or_assign(report.k, std::move(report));
  go_on(self);
}

void reduce(self_ptr self, const step_part& part) {
  drafter_state& s = self->state;
  auto& parts = s.parts[part.step];
  parts.resize(s.options.drafters);
  parts.at(part.rank) = part;
  if (part.step != s.order->open_step() ||
      !std::all_of(parts.begin(), parts.end(), [](const auto& p) { return p.has_value(); }))
    return;
  self->stats().set_activity(activity::computing);
  {
    const auto stage = s.stages.within("reduce");
    std::vector<at::Tensor> gradients;
    s.reduced_weight = 0;
    for (const auto& p : parts) {
      p->gradient->ready.wait();
      gradients.push_back(p->gradient->tensors.at(0));
      s.reduced_weight += p->weight_sum;
    }
    if (s.options.drafters == 1) {
      s.reduced = gradients[0];
    } else {
      if (!s.sum.defined()) s.sum = at::empty_like(gradients[0]);
      sum_in_rank_order(gradients, s.sum);
      s.reduced = s.sum;
    }
  }
  s.parts.erase(part.step);
  self->stats().set_activity(activity::wants_go);
  self->send(s.links->coordinator, step_reduced{s.order->open_step(), self->identity().index});
}

void update(self_ptr self, const step_go& m) {
  drafter_state& s = self->state;
  DFLASH_CHECK(m.step == s.order->open_step() && s.reduced.defined(),
               "a go for a step that is not reduced here",
               m.step);
  s.reports.erase(s.reports.begin(), s.reports.lower_bound(m.noted_k));
  self->stats().set_activity(activity::computing);
  step_committed done;
  {
    const auto stage = s.stages.within("update");
    const update_report report = s.options.work.update(s.reduced, s.reduced_weight, m.step);
    done = {m.step,
            self->identity().index,
            report.grad_norm,
            report.lr,
            report.update_norm,
            report.skipped};
  }
  s.stages.report(self->stats(), stage_report::none, m.step, self->identity().index);
  s.reduced = at::Tensor();
  s.weight_sum = 0;
  s.part_sent = false;
  s.order->committed();
  self->send(s.links->coordinator, done);
  // Parts of the next step may be here already; the last of them is our own, which comes by
  // message.
  go_on(self);
}

void save(self_ptr self, const save_request& m) {
  drafter_state& s = self->state;
  self->stats().set_activity(activity::computing);
  save_done done;
  done.steps = m.steps;
  {
    const auto stage = s.stages.within("save");
    try {
      s.options.work.save(m);
      done.good = true;
    } catch (const std::exception& e) {
      done.error = e.what();
    }
  }
  self->send(s.links->coordinator, std::move(done));
  self->stats().set_activity(s.part_sent ? activity::wants_peers : activity::wants_batch);
  go_on(self);
}

void start(self_ptr self, const start_run& m) {
  drafter_state& s = self->state;
  const auto before = std::exchange(s.links, m.links);
  s.stages.use(m.links->profiler);
  if (before && before->metrics != m.links->metrics)
    for (const auto& [k, report] : s.reports) self->send(m.links->metrics, report);
  if (!before || before->dispatcher != m.links->dispatcher) {
    const slot_pool& slots = *s.options.slots;
    self->send(m.links->dispatcher,
               room_grant{self->identity().index,
                          ++s.credit_epoch,
                          slots.limit_bytes(),
                          static_cast<uint32_t>(slots.slots()),
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
          set_up_lane_thread(fmt::format("drafter-{}", self->identity().index), options.threads);
        drafter_state& s = self->state;
        s.options = options;
        s.stages = stage_sink(options.profile, self->stats(), options.work.stages);
        s.order.emplace(
            *options.plan, self->identity().index, options.drafters, options.first_step);
        return {
            [=](const start_run& m) { start(self, m); },
            [=](const hidden_batch& m) { arrive(self, m); },
            [=](const step_part& m) { reduce(self, m); },
            [=](const step_go& m) { update(self, m); },
            [=](const save_request& m) { save(self, m); },
            [=](const refused_batch& m) { self->send(self->state.links->dispatcher, m); },
            [=](next_atom) { train_one(self); },
        };
      });
}

}  // namespace dflash

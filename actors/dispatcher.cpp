#include "actors/dispatcher.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>

namespace dflash {

namespace {

using self_ptr = metered_ptr<dispatcher_actor, dispatcher_state>;

// For watching: what each drafter may still be sent.
void show_credits(self_ptr self) {
  const auto& ledger = self->state.book->ledger();
  mailbox_registry& registry = *self->identity().registry;
  self->stats().set_credits(static_cast<int64_t>(self->state.book->in_flight()));
  for (uint32_t i = 0; i < self->state.links->drafters.size(); ++i)
    registry.set_credits(fmt::format("drafter_train {}", i), ledger.free_batches(i));
}

// After any news: hand out what can be handed out, let the loader go on.
void hand_out(self_ptr self) {
  dispatcher_state& s = self->state;
  if (!s.links) return;  // a drafter's grant may overtake start_run
  const auto stage = s.stages.within("hand out");
  for (capture_job& job : s.book->take_jobs()) {
    if (job.lane < s.links->targets.size())
      self->send(s.links->targets[job.lane], std::move(job));
    else
      self->send(s.links->loader, std::move(job));
  }
  for (const capture_job& job : s.book->take_dropped())
    self->send(s.links->drafters.at(job.drafter), hidden_batch{job.tokens, {}, job.epoch});
  if (const load_credit credit = s.book->take_load_credit(); credit.batches > 0)
    self->send(s.links->loader, credit);
  show_credits(self);
}

// Compares who was there with who is: all that a dead producer had to say has been heard by now.
void relink(self_ptr self, const std::shared_ptr<const pipeline_links>& links) {
  dispatcher_state& s = self->state;
  const auto before = std::exchange(s.links, links);
  s.stages.use(links->profiler);
  if (!before) return;
  for (uint32_t lane = 0; lane < links->postprocess.size(); ++lane) {
    const bool reader = lane >= links->targets.size();
    if (before->postprocess[lane] != links->postprocess[lane] ||
        (reader ? before->loader != links->loader : before->targets[lane] != links->targets[lane]))
      s.book->lane_lost(lane);
  }
  for (uint32_t i = 0; i < links->drafters.size(); ++i)
    if (before->drafters[i] && before->drafters[i] != links->drafters[i]) s.book->drafter_lost(i);
  if (before->loader == links->loader) return;
  if (const load_credit credit = s.book->open_load_credit(); credit.batches > 0)
    self->send(links->loader, credit);
}

void made_again_or_dropped(self_ptr self, const capture_job& job) {
  dispatcher_state& s = self->state;
  switch (s.book->not_finite(job)) {
    case dispatch_book::verdict::nobody_wants_it:
      return;
    case dispatch_book::verdict::made_again:
      spdlog::warn("hidden states of batch {} are not finite: made again", job.tokens->k);
      return;
    case dispatch_book::verdict::dropped:
      spdlog::error(
          "hidden states of batch {} are not finite again: dropped, it adds nothing (documents {})",
          job.tokens->k,
          fmt::join(job.tokens->documents, ", "));
      self->send(s.links->coordinator, batch_dropped{job.tokens->k});
  }
}

}  // namespace

dispatcher_actor spawn_dispatcher(caf::actor_system& system,
                                  actor_identity identity,
                                  dispatch_options options,
                                  bool profile) {
  return spawn_metered<dispatcher_actor, dispatcher_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options, profile](self_ptr self) -> dispatcher_actor::behavior_type {
        self->state.book.emplace(options);
        self->state.stages = stage_sink(profile, self->stats());
        dispatch_book* book = &*self->state.book;
        stage_sink* stages = &self->state.stages;
        return {
            [=](const start_run& m) {
              relink(self, m.links);
              hand_out(self);
            },
            [=](const batch_ready& m) {
              const auto stage = stages->within("batch loaded");
              book->loaded(m);
              hand_out(self);
            },
            [=](const lane_free& m) {
              const auto stage = stages->within("lane asks");
              book->lane_asks(m.lane);
              hand_out(self);
            },
            [=](const delivered& m) {
              const auto stage = stages->within("batch delivered");
              book->delivered_to_drafter(m);
              self->stats().complete();
            },
            [=](const not_finite& m) {
              try {
                made_again_or_dropped(self, m.job);
              } catch (const std::runtime_error& e) {
                self->send(self->state.links->coordinator, give_up{e.what()});
              }
              hand_out(self);
            },
            [=](const kept_missing& m) {
              spdlog::warn("kept hidden states of row {} are missing or damaged: made again",
                           m.job.tokens->row);
              book->kept_is_missing(m.job);
              hand_out(self);
            },
            [=](const room_grant& m) {
              const auto stage = stages->within("room granted");
              book->granted(m);
              hand_out(self);
            },
            [=](const credit_return& m) {
              const auto stage = stages->within("batch trained");
              book->trained(m);
              hand_out(self);
            },
            [=](const refused_batch& m) {
              spdlog::error("mailbox limit of a consumer passed by batch {}: made again", m.k);
              book->refused(m.k);
              hand_out(self);
            },
            [=](const step_done& m) {
              book->committed(m.end_k);
              stages->report_step(self->stats(), m.step);
            },
            [=](const stop_at& m) { book->stop_at(m.end_k); },
            [=](describe_atom) { return book->describe(); },
        };
      });
}

}  // namespace dflash

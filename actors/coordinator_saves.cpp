#include <spdlog/spdlog.h>

#include "actors/coordinator_parts.hpp"

namespace dflash::coordination {

constexpr std::chrono::seconds flush_timeout{10};

namespace {

void send_save(self_ptr self, const save_request& request) {
  coordinator_state& s = self->state;
  s.flushing = false;
  s.saving = true;
  self->send(s.links->drafters.at(0), request);
  if (s.go_pending) send_go(self);
}

}  // namespace

// metrics.jsonl must reach as far as the checkpoint, so metrics writes first; the next step's go
// waits for that, so that drafter 0 gets the request before it updates again. A metrics that dies
// is asked again in its next life.
void begin_save(self_ptr self) {
  coordinator_state& s = self->state;
  s.flushing = true;
  s.flush_again = !s.links->metrics;
  const save_request request = s.book->make_save_request();
  const auto without = [=] {
    spdlog::error("metrics did not answer before a checkpoint: metrics.jsonl may lack steps");
    send_save(self, request);
  };
  if (s.is_retired(part::metrics)) without();
  if (!s.links->metrics) return;
  const uint32_t attempt = ++s.flush_attempt;
  self->request(s.links->metrics, caf::duration{flush_timeout}, flush_metrics{request.steps})
      .then(
          [=](uint64_t) {
            if (self->state.flush_attempt == attempt) send_save(self, request);
          },
          [=](const caf::error& e) {
            if (self->state.flush_attempt == attempt && e == caf::sec::request_timeout) without();
          });
}

void on_saved(self_ptr self, const save_done& m) {
  coordinator_state& s = self->state;
  s.saving = false;
  if (m.good) {
    s.outcome.saved_step = m.steps;
  } else {
    spdlog::error("checkpoint at step {} failed, older ones stand: {}", m.steps, m.error);
  }
  if (!s.book->finished() || m.steps != s.book->steps()) return;
  if (!m.good)
    shut_down(self, run_status::failed, "the last checkpoint could not be saved: " + m.error);
  else
    shut_down(self, s.book->complete() ? run_status::completed : run_status::stopped);
}

}  // namespace dflash::coordination

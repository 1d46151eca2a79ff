// The metered mailbox on real actors, with the deterministic scheduler.
#include "actors/runtime/metered.hpp"

#include <ATen/ops/zeros.h>

#include <memory>

#include "actors/dispatcher.hpp"
#include "actors/inspector.hpp"
#include "actors/postprocess.hpp"
#include "data/batches.hpp"
#include "messages/tensor_block.hpp"
#include "tests/actors/caf_catch.hpp"  // last: it defines macros

using namespace dflash;

namespace {

struct test_config : caf::actor_system_config {
  test_config() { add_message_types<caf::id_block::dflash>(); }
};

std::shared_ptr<const batch> tokens(uint64_t k) {
  auto b = std::make_shared<batch>();
  b->k = k;
  return b;
}

struct sink_state {
  static inline const char* name = "sink";
  std::vector<uint64_t> refused;
  bool adopt = false;
};

struct fixture : test_coordinator_fixture<test_config> {
  fixture() : registry(std::make_shared<mailbox_registry>()) {}

  // A consumer of captured states with room for two of 100 bytes.
  postprocess_actor sink(bool adopt) {
    identity = identify(registry, "sink", 3, 200);
    return spawn_metered<postprocess_actor, sink_state>(
        sys,
        runs_as::scheduled,
        identity,
        [adopt](
            metered_ptr<postprocess_actor, sink_state> self) -> postprocess_actor::behavior_type {
          self->state.adopt = adopt;
          return {[](const start_run&) {},
                  [self](const captured&) {
                    if (self->state.adopt) self->adopt_bytes();
                  },
                  [self](const refused_batch& m) { self->state.refused.push_back(m.k); }};
        });
  }
  captured message(uint64_t k) {
    captured m;
    m.job.tokens = tokens(k);
    m.hidden = make_tensor_handle({at::zeros({25})}, false, {});
    return m;
  }
  std::vector<uint64_t> refused_by(const postprocess_actor& actor) {
    using type = metered_actor<postprocess_actor, sink_state>;
    return static_cast<type*>(caf::actor_cast<caf::abstract_actor*>(actor))->state.refused;
  }

  std::shared_ptr<mailbox_registry> registry;
  actor_identity identity;
};

}  // namespace

TEST_CASE_METHOD(fixture, "bytes are counted from arrival to the end of service") {
  const auto actor = sink(false);
  caf::anon_send(actor, message(1));
  caf::anon_send(actor, message(2));
  CHECK(identity.stats->bytes() == 200);
  CHECK(identity.stats->depth() == 2);
  consume_messages();
  CHECK(identity.stats->bytes() == 0);
  CHECK(identity.stats->peak_bytes() == 200);
  CHECK(identity.stats->handled() == 2);
  CHECK(identity.stats->refused() == 0);
  caf::anon_send_exit(actor, caf::exit_reason::kill);
}

TEST_CASE_METHOD(fixture, "bytes that an actor keeps are counted until it releases them") {
  const auto actor = sink(true);
  caf::anon_send(actor, message(1));
  consume_messages();
  CHECK(identity.stats->bytes() == 100);
  identity.stats->release(100);
  CHECK(identity.stats->bytes() == 0);
  caf::anon_send_exit(actor, caf::exit_reason::kill);
}

TEST_CASE_METHOD(fixture, "the fuse refuses a message above the limit and tells the owner") {
  const auto actor = sink(false);
  for (uint64_t k = 1; k <= 4; ++k) caf::anon_send(actor, message(k));
  CHECK(identity.stats->bytes() == 200);
  CHECK(identity.stats->refused() == 2);
  consume_messages();
  CHECK(refused_by(actor) == std::vector<uint64_t>{3, 4});
  CHECK(identity.stats->peak_bytes() == 200);
  const mailbox_report row = identity.stats->row();
  CHECK(row.refused == 2);
  CHECK(row.limit_bytes == 200);
  CHECK(row.wait_ns >= 0);
  caf::anon_send_exit(actor, caf::exit_reason::kill);
}

TEST_CASE_METHOD(fixture, "the inspector answers for actors that are busy") {
  const auto busy = registry->add("target_forward 0");
  busy->set_activity(activity::computing);
  const auto inspector =
      spawn_inspector(sys, runs_as::scheduled, identify(registry, "inspector"), {"runs/x", 9, {}});
  consume_messages();
  system_report report;
  auto waiting = self->request(inspector, caf::infinite, inspect_atom_v);
  consume_messages();
  waiting.receive([&](const system_report& r) { report = r; },
                  [](const caf::error&) { FAIL("no answer"); });
  CHECK(report.run == "runs/x");
  CHECK(report.total_steps == 9);
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[0].actor == "target_forward 0");
  CHECK(report.rows[0].state == "computing");
  caf::anon_send_exit(inspector, caf::exit_reason::kill);
}

TEST_CASE("time is booked on the activity that it was spent in") {
  mailbox_stats stats("x");
  stats.set_activity(activity::computing);
  const int64_t began = now_ns();
  while (now_ns() - began < 1000000) {
  }
  stats.set_activity(activity::wants_job);
  CHECK(stats.spent_ns(activity::computing) >= 1000000);
  CHECK(stats.current() == activity::wants_job);
  CHECK(stats.spent_ns(activity::wants_slot) == 0);
}

TEST_CASE("who is idle computes while it serves a message, unless its handler says otherwise") {
  mailbox_stats stats("x");
  stats.set_activity(activity::idle);
  stats.begin();
  CHECK(stats.current() == activity::computing);
  stats.end(now_ns(), false);
  CHECK(stats.current() == activity::idle);
  stats.begin();
  stats.set_activity(activity::wants_job);
  stats.end(now_ns(), false);
  CHECK(stats.current() == activity::wants_job);
  stats.begin();
  CHECK(stats.current() == activity::wants_job);
  stats.end(now_ns(), false);
  CHECK(stats.current() == activity::wants_job);
}

TEST_CASE("a next life goes on with the figures; what is sent to the dead counts nowhere") {
  mailbox_registry registry;
  const auto first = registry.add("postprocess 0", 200);
  CHECK(first->arrive(150));
  first->begin();
  first->end(now_ns(), false);
  first->complete();
  registry.set_failure("postprocess 0", "old news");
  registry.bury("postprocess 0", activity::restarting);
  CHECK(registry.rows().at(0).bytes == 0);
  CHECK(registry.rows().at(0).state == activity_text(activity::restarting));
  const auto second = registry.add("postprocess 0", 200);
  first->arrive(40);
  const mailbox_report row = registry.rows().at(0);
  CHECK(registry.rows().size() == 1);
  CHECK(row.restarts == 1);
  CHECK(row.bytes == 0);
  CHECK(row.depth == 0);
  CHECK(row.peak_bytes == 150);
  CHECK(row.handled == 1);
  CHECK(row.limit_bytes == 200);
  CHECK(registry.completed("postprocess 0") == 1);
  CHECK(registry.restarts() == 1);
  CHECK(registry.failure("postprocess 0").empty());
  CHECK(second->arrive(200));  // the whole limit is free
}

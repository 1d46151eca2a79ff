// Who hears of whom in which order, and what a postprocess does with a batch for an earlier life of
// a drafter: with the deterministic scheduler.
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/dispatcher.hpp"
#include "actors/drafter_train.hpp"
#include "actors/postprocess.hpp"
#include "actors/supervision.hpp"
#include "actors/target_forward.hpp"
#include "messages/tensor_block.hpp"
#include "tests/actors/caf_catch.hpp"  // last: it defines macros

using namespace dflash;

namespace {

struct test_config : caf::actor_system_config {
  test_config() { add_message_types<caf::id_block::dflash>(); }
};

struct fixture : test_coordinator_fixture<test_config> {
  fixture() : registry(std::make_shared<mailbox_registry>()) {}
  ~fixture() {
    for (const auto& actor : actors) caf::anon_send_exit(actor, caf::exit_reason::kill);
    consume_messages();
  }

  template <class Handle>
  Handle kept(Handle handle) {
    actors.push_back(caf::actor_cast<caf::strong_actor_ptr>(handle));
    return handle;
  }
  actor_identity named(const std::string& name, uint32_t index = 0) {
    return identify(registry, name, index);
  }
  target_actor target() {
    target_options o;
    o.slots = slot_pool::make(2, 96);
    return kept(spawn_target(sys, runs_as::scheduled, named("target_forward 0"), o));
  }
  postprocess_actor postprocess() {
    postprocess_options o;
    o.shape = {3, 8, 1, false, at::kFloat};
    o.finite = all_finite;
    return kept(spawn_postprocess(sys, runs_as::scheduled, named("postprocess 0"), o));
  }
  drafter_actor drafter(uint32_t rank) {
    drafter_options o;
    o.drafters = 2;
    o.plan.emplace(8, 1, 2, 1, 4);
    o.slots = slot_pool::make(2, 96);
    return kept(spawn_drafter(
        sys, runs_as::scheduled, named("drafter_train " + std::to_string(rank), rank), o));
  }
  pipeline_links links() {
    pipeline_links l;
    l.dispatcher = kept(spawn_dispatcher(sys, named("dispatcher"), {0, 8, 1, 2, 96}));
    l.targets = {target()};
    l.postprocess = {postprocess()};
    l.drafters = {drafter(0), drafter(1)};
    l.drafter_lives = {2, 0};
    consume_messages();
    return l;
  }
  captured states_for(uint32_t life) {
    auto tokens = std::make_shared<batch>();
    tokens->k = 6;
    captured m;
    m.job.tokens = std::move(tokens);
    m.job.life = life;
    m.job.room = room;
    m.hidden = make_tensor_handle({at::zeros({3, 8})}, false, std::move(*slots->try_acquire()));
    return m;
  }
  uint64_t handled(const std::string& actor) {
    for (const mailbox_report& row : registry->rows())
      if (row.actor == actor) return row.handled;
    return 0;
  }

  std::shared_ptr<mailbox_registry> registry;
  std::vector<caf::strong_actor_ptr> actors;
  std::shared_ptr<slot_pool> room = slot_pool::make(2, 96), slots = slot_pool::make(2, 96);
};

}  // namespace

TEST_CASE_METHOD(fixture,
                 "drafters hear of a change last, and once: whatever they set going finds "
                 "the others informed",
                 "[guarantees]") {
  const auto l = std::make_shared<const pipeline_links>(links());
  send_links(l);
  std::vector<std::string> order;
  for (const caf::resumable* job : sched.jobs)
    order.emplace_back(dynamic_cast<const caf::local_actor*>(job)->name());
  CHECK(order ==
        std::vector<std::string>{
            "postprocess", "dispatcher", "target_forward", "drafter_train", "drafter_train"});
  for (const char* actor : {"drafter_train 0", "drafter_train 1"}) {
    INFO(actor);
    for (const mailbox_report& row : registry->rows())
      if (row.actor == actor) CHECK(row.depth == 1);
  }
}

TEST_CASE_METHOD(fixture,
                 "hidden states for an earlier life of a drafter go nowhere; their slot "
                 "comes back",
                 "[guarantees]") {
  const auto l = std::make_shared<const pipeline_links>(links());
  send_links(l);
  consume_messages();
  const uint64_t at_drafter = handled("drafter_train 0"), at_target = handled("target_forward 0"),
                 at_dispatcher = handled("dispatcher");
  caf::anon_send(l->postprocess[0], states_for(1));
  CHECK(slots->in_use() == 1);
  consume_messages();
  CHECK(slots->in_use() == 0);
  CHECK(room->in_use() == 0);
  CHECK(handled("target_forward 0") == at_target + 1);  // may use the slot again
  CHECK(handled("dispatcher") == at_dispatcher);        // heard nothing of a delivery
  CHECK(handled("drafter_train 0") == at_drafter);

  caf::anon_send(l->postprocess[0], states_for(2));
  consume_messages();
  CHECK(handled("target_forward 0") == at_target + 2);
  CHECK(handled("dispatcher") == at_dispatcher + 1);
  CHECK(handled("drafter_train 0") == at_drafter + 1);
}

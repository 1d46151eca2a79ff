// The metered mailbox: a base class for every actor of the pipeline. It counts what comes in and
// how long it takes through the two virtual hooks of CAF 0.17 (enqueue: any thread; consume: the
// owner), and is the fuse of the byte limit: a message with tensors above it is refused and
// counted, and the owner is told by an urgent refused_batch. Cost about 0.1 us a message.
#pragma once

#include <caf/all.hpp>

#include <spdlog/spdlog.h>

#include <caf/detail/scope_guard.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "actors/runtime/fault_points.hpp"
#include "actors/runtime/mailbox_stats.hpp"
#include "actors/runtime/message_bytes.hpp"
#include "messages/actors.hpp"

namespace dflash {

// What every actor is born with.
struct actor_identity {
  std::shared_ptr<mailbox_registry> registry;
  std::shared_ptr<mailbox_stats> stats;
  uint32_t index = 0;  // among its kind
  fault_points faults = {};
};

inline actor_identity identify(const std::shared_ptr<mailbox_registry>& registry,
                               std::string name,
                               uint32_t index = 0,
                               uint64_t limit_bytes = 0,
                               fault_points faults = {}) {
  return {registry, registry->add(std::move(name), limit_bytes), index, std::move(faults)};
}

template <class Base>
class metered : public Base {
public:
  // The identity comes with the spawn arguments: it is there before the first message can be.
  metered(caf::actor_config& config, actor_identity identity)
      : Base(config), identity_(std::move(identity)) {}

  mailbox_stats& stats() { return *identity_.stats; }
  const actor_identity& identity() const { return identity_; }

  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) override {
    const message_load load = load_of(element->content());
    if (identity_.stats->arrive(load.bytes)) {
      if (load.bytes > 0) identity_.stats->hold(load.k);
      Base::enqueue(std::move(element), unit);
      return;
    }
    identity_.stats->arrive(0);
    Base::enqueue(caf::make_mailbox_element(nullptr,
                                            caf::make_message_id(caf::message_priority::high),
                                            {},
                                            refused_batch{identity_.index, load.k}),
                  unit);
  }

  caf::invoke_message_result consume(caf::mailbox_element& element) override {
    const auto stats = identity_.stats;  // outlives a handler that quits
    const message_load load = load_of(element.content());
    const int64_t began = now_ns();
    stats->begin();
    adopted_ = false;
    auto result = caf::invoke_message_result::consumed;
    auto done = caf::detail::make_scope_guard([&] {  // after an exception too
      const bool skipped = result == caf::invoke_message_result::skipped;
      stats->end(began, skipped);
      if (skipped || adopted_) return;
      stats->release(load.bytes);
      if (load.bytes > 0) stats->let_go(load.k);
    });
    this->current_mailbox_element(&element);  // an exception is answered to its sender
    fault("message");
    result = Base::consume(element);
    return result;
  }

  // Before the mailbox is emptied: what senders see of that is not counted any more.
  bool cleanup(caf::error&& reason, caf::execution_unit* host) override {
    const auto stats = identity_.stats;
    stats->close();
    stats->set_activity(activity::ended);
    return Base::cleanup(std::move(reason), host);
  }

  // A named place where a test may end this actor.
  void fault(const char* point) const { identity_.faults.pass(identity_.stats->name, point); }

  // In a handler: the bytes and the batch of this message stay here after it; stats().release() and
  // let_go() when they go.
  void adopt_bytes() { adopted_ = true; }

private:
  actor_identity identity_;
  bool adopted_ = false;
};

// An actor of the pipeline: interface, state struct, and a function that makes its behaviour. The
// function runs in the actor's own thread, first of all.
template <class Handle, class State>
class metered_actor;

template <class State, class... Sigs>
class metered_actor<caf::typed_actor<Sigs...>, State> final
    : public caf::stateful_actor<State, metered<caf::typed_event_based_actor<Sigs...>>> {
public:
  using super = caf::stateful_actor<State, metered<caf::typed_event_based_actor<Sigs...>>>;
  using typename super::behavior_type;
  using behavior_function = std::function<behavior_type(metered_actor*)>;

  metered_actor(caf::actor_config& config, actor_identity identity, behavior_function function)
      : super(config, std::move(identity)), function_(std::move(function)) {}

  behavior_type make_behavior() override {
    const actor_identity& me = this->identity();
    this->set_exception_handler([me](std::exception_ptr& thrown) -> caf::error {
      std::string text = "unknown exception";
      try {
        std::rethrow_exception(thrown);
      } catch (const std::exception& e) {
        text = e.what();
      } catch (...) {
      }
      me.registry->set_failure(me.stats->name, text);
      return caf::make_error(caf::sec::runtime_error, text);
    });
    this->set_default_handler(
        [me](caf::scheduled_actor*, caf::message_view& view) -> caf::result<caf::message> {
          spdlog::warn("{}: unexpected message {}", me.stats->name, caf::to_string(view.content()));
          return caf::sec::unexpected_message;
        });
    this->stats().set_activity(activity::idle);
    auto behavior = function_(this);
    function_ = nullptr;  // drops what it captured
    return behavior;
  }

private:
  behavior_function function_;
};

template <class Handle, class State>
using metered_ptr = metered_actor<Handle, State>*;

enum class runs_as { scheduled, detached };

// Tests spawn everything scheduled, so that the deterministic scheduler sees all of it.
template <class Handle, class State, class Function>
Handle spawn_metered(caf::actor_system& system,
                     runs_as how,
                     actor_identity identity,
                     Function function) {
  using actor = metered_actor<Handle, State>;
  typename actor::behavior_function f = std::move(function);
  if (how == runs_as::detached)
    return system.spawn<actor, caf::detached>(std::move(identity), std::move(f));
  return system.spawn<actor>(std::move(identity), std::move(f));
}

}  // namespace dflash

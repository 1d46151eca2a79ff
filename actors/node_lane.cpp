#include "actors/node_lane.hpp"

#include <malloc.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <caf/detail/scope_guard.hpp>
#include <exception>
#include <stdexcept>
#include <utility>

#include "actors/runtime/lane_thread.hpp"

namespace dflash {

namespace {

// What the data connection's thread and the lane share.
struct lane_use {
  std::atomic<bool> taken{false};
};

struct node_lane_state {
  static inline const char* name = "lent_lane";
  node_lane_options options;
  std::shared_ptr<lane_use> use = std::make_shared<lane_use>();
  std::unique_ptr<wire_server> server;  // its end waits for what is being computed

  ~node_lane_state() {
    server.reset();
    ::malloc_trim(0);  // other lanes of this host may need it
  }
};

using self_type = caf::stateful_actor<node_lane_state, lent_lane_actor::base>;

// Tells the lane when its connection is over.
class connection_end {
public:
  connection_end(caf::weak_actor_ptr lane, std::shared_ptr<mailbox_stats> stats)
      : stats(std::move(stats)), lane_(std::move(lane)) {}
  ~connection_end() {
    stats->set_activity(activity::ended);
    if (const caf::strong_actor_ptr alive = lane_.lock())
      caf::anon_send_exit(alive, caf::exit_reason::user_shutdown);
  }
  connection_end(const connection_end&) = delete;
  connection_end& operator=(const connection_end&) = delete;

  const std::shared_ptr<mailbox_stats> stats;

private:
  caf::weak_actor_ptr lane_;
};

// The session with its calls counted as messages of a mailbox, for those who look.
wire_session counted(wire_session session, std::shared_ptr<connection_end> end) {
  auto answer = std::move(session.answer);
  session.answer = [answer = std::move(answer), end](wire_message m) {
    mailbox_stats& stats = *end->stats;
    stats.arrive(0);
    stats.begin();
    stats.set_activity(activity::computing);
    const int64_t began = now_ns();
    const auto done = caf::detail::make_scope_guard([&] {
      stats.end(began, false);
      stats.complete();
      stats.set_activity(activity::wants_job);
    });
    return answer(std::move(m));
  };
  return session;
}

uint16_t serve(self_type* self) {
  node_lane_state& s = self->state;
  const node_lane_options& o = s.options;
  const auto lane = caf::actor_cast<caf::weak_actor_ptr>(self->address());
  s.server = std::make_unique<wire_server>(
      o.at,
      o.network.security,
      o.network.data_limits(),
      [o, use = s.use, lane](const wire_peer& peer) {
        if (!same_secret(peer.token, o.token))
          throw std::runtime_error("no lane is lent by this token");
        if (use->taken.exchange(true)) throw std::runtime_error("the token has been used");
        auto end = std::make_shared<connection_end>(lane, o.stats);
        o.stats->set_activity(activity::wants_job);
        return counted(o.make(o.request), std::move(end));
      },
      [lane = o.request.lane](const std::string& line) { spdlog::warn("{}: {}", lane, line); });
  self->delayed_send(self, o.unused, tick_atom_v);
  return s.server->port();
}

}  // namespace

lent_lane_actor spawn_node_lane(caf::actor_system& system, node_lane_options options) {
  return system.spawn<caf::detached>(
      [options = std::move(options)](lent_lane_actor::stateful_pointer<node_lane_state> self)
          -> lent_lane_actor::behavior_type {
        set_up_lane_thread("lent " + options.request.lane, 0);
        self->state.options = options;
        self->monitor(options.owner);
        self->set_down_handler(
            [self](const caf::down_msg&) { self->quit(caf::exit_reason::user_shutdown); });
        self->set_exception_handler([](std::exception_ptr& thrown) -> caf::error {
          try {
            std::rethrow_exception(thrown);
          } catch (const std::exception& e) {
            return caf::make_error(caf::sec::runtime_error, std::string(e.what()));
          } catch (...) {
            return caf::sec::runtime_error;
          }
        });
        return {
            [=](serve_atom) { return serve(self); },
            [=](tick_atom) {
              if (self->state.use->taken) return;
              spdlog::warn("{}: nobody came for it", self->state.options.request.lane);
              self->quit(caf::exit_reason::user_shutdown);
            },
        };
      });
}

}  // namespace dflash

#include "actors/node.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <utility>

#include "actors/node_lane.hpp"
#include "actors/run_watch.hpp"
#include "messages/wire_socket.hpp"

namespace dflash {

namespace {

using self_ptr = metered_ptr<node_actor, node_state>;

std::string key_of(const lend_request& request) {
  return request.purpose + " " + request.lane;
}

// 128 bits of the system's generator, in hexadecimal.
std::string new_token() {
  std::random_device system;
  std::string token;
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", system());
  return token;
}

std::string greet(self_ptr self, const std::string& text) {
  const node_state& s = self->state;
  self->stats().complete();
  try {
    const node_greeting there = parse_greeting(text);
    if (const std::string why = disagreement(s.options.self, there); !why.empty())
      spdlog::warn("{} was refused: {}", there.name, why);
  } catch (const std::exception& e) {
    spdlog::warn("a greeting that is none: {}", e.what());
  }
  return to_json(s.options.self);  // who asks sees for himself
}

// Why this lane is not to be had; empty: it is.
std::string refusal(const node_state& s, const lend_request& request) {
  const node_greeting& self = s.options.self;
  if (std::string why = disagreement(self, request.borrower); !why.empty()) return why;
  if (std::find(self.lanes.begin(), self.lanes.end(), request.lane) == self.lanes.end())
    return fmt::format(
        "{} lends no lane {}, only {}", self.name, request.lane, fmt::join(self.lanes, ", "));
  if (request.purpose != "target" && request.purpose != "drafter")
    return "a lane is lent as target or drafter, not as " + request.purpose;
  const auto lent = s.lent.find(key_of(request));
  if (lent != s.lent.end())
    return fmt::format("{} has lent {} as {} to {}",
                       self.name,
                       request.lane,
                       request.purpose,
                       lent->second.request.borrower.name);
  return {};
}

caf::result<std::string> lend(self_ptr self, const std::string& text) {
  node_state& s = self->state;
  self->stats().complete();
  lend_answer answer;
  lend_request request;
  try {
    request = parse_lend_request(text);
    answer.refused = refusal(s, request);
  } catch (const std::exception& e) {
    answer.refused = std::string("the request cannot be read: ") + e.what();
  }
  if (!answer.refused.empty()) {
    spdlog::warn("refused: {}", answer.refused);
    return to_json(answer);
  }
  const std::string key = key_of(request);
  auto stats = self->identity().registry->add(key);
  auto place = std::make_shared<lane_place>(request.borrower.name);
  place->set(lane_place::condition::connected);
  self->identity().registry->set_place(key, std::move(place));
  answer.token = new_token();
  const lent_lane_actor lane = spawn_node_lane(self->system(),
                                               {self->address(),
                                                request,
                                                answer.token,
                                                s.options.data,
                                                s.options.network,
                                                s.options.make,
                                                s.options.unused,
                                                std::move(stats)});
  const caf::strong_actor_ptr borrower = self->current_sender();
  self->monitor(lane);
  if (borrower) self->monitor(caf::actor_cast<caf::actor_addr>(borrower));
  s.lent[key] = {lane, caf::actor_cast<caf::actor_addr>(borrower), request, answer.token};
  auto promise = self->make_response_promise<std::string>();
  self->request(lane, caf::duration{s.options.network.timeout}, serve_atom_v)
      .then(
          [=](uint16_t port) mutable {
            answer.port = port;
            spdlog::info("{} lent as {} to {}, port {}",
                         request.lane,
                         request.purpose,
                         request.borrower.name,
                         port);
            promise.deliver(to_json(answer));
          },
          [=](const caf::error& e) mutable {
            answer.refused = "the lane did not start: " + self->system().render(e);
            promise.deliver(to_json(answer));
          });
  return promise;
}

void on_down(self_ptr self, const caf::down_msg& m) {
  node_state& s = self->state;
  if (s.joined && caf::actor_cast<caf::actor_addr>(s.joined) == m.source) {
    spdlog::warn("the run at {} is gone ({})", s.options.join->text(), caf::to_string(m.reason));
    s.joined = nullptr;
  }
  for (auto i = s.lent.begin(); i != s.lent.end();) {
    const lent_lane& lent = i->second;
    if (lent.actor.address() == m.source) {
      spdlog::info("{} is free again ({})", i->first, lent.request.borrower.name);
      self->identity().registry->bury(i->first, activity::ended);
      i = s.lent.erase(i);
      continue;
    }
    if (lent.borrower == m.source) {
      if (m.reason)  // else the run is done with it
        spdlog::warn("{}: its borrower {} is gone ({})",
                     i->first,
                     lent.request.borrower.name,
                     caf::to_string(m.reason));
      caf::anon_send_exit(lent.actor, caf::exit_reason::user_shutdown);
    }
    ++i;
  }
}

// Said once until something else happens.
void join_failed(self_ptr self, const std::string& why) {
  node_state& s = self->state;
  if (s.last_problem == why) return;
  s.last_problem = why;
  spdlog::info("no run to join at {} yet: {}", s.options.join->text(), why);
}

void offer(self_ptr self, const caf::strong_actor_ptr& run, const std::set<std::string>& types) {
  node_state& s = self->state;
  if (!run || !self->system().assignable(
                  types, self->system().message_types(caf::detail::type_list<node_door_actor>{}))) {
    join_failed(self, "what listens there is no run of this version");
    return;
  }
  self->request(caf::actor_cast<node_door_actor>(run),
                caf::duration{s.options.network.timeout},
                offer_atom_v,
                to_json(s.options.self))
      .then(
          [=](const std::string& text) {
            node_state& now = self->state;
            node_greeting there;
            try {
              there = parse_greeting(text);
            } catch (const std::exception& e) {
              join_failed(self, e.what());
              return;
            }
            if (const std::string why = disagreement(now.options.self, there); !why.empty()) {
              join_failed(self, why);
              return;
            }
            spdlog::info("joined {} at {}", there.name, now.options.join->text());
            now.last_problem.clear();
            now.joined = run;
            self->monitor(caf::actor_cast<caf::actor_addr>(run));
          },
          [=](const caf::error& e) { join_failed(self, self->system().render(e)); });
}

void try_to_join(self_ptr self) {
  node_state& s = self->state;
  if (!s.options.join) return;
  self->delayed_send(self, s.options.join_every, tick_atom_v);
  if (s.joined) return;
  self->request(connector_of(self->system(), s.options.network),
                caf::duration{s.options.network.timeout},
                caf::connect_atom_v,
                s.options.join->host,
                s.options.join->port)
      .then([=](const caf::node_id&,
                const caf::strong_actor_ptr& run,
                const std::set<std::string>& types) { offer(self, run, types); },
            [=](const caf::error& e) { join_failed(self, self->system().render(e)); });
}

system_report report_of(self_ptr self) {
  const node_state& s = self->state;
  system_report report;
  report.run =
      fmt::format("node {}, lends {}", s.options.self.name, fmt::join(s.options.self.lanes, " "));
  report.node = node_name();
  report.uptime_ns = now_ns() - s.born_ns;
  report.rows = self->identity().registry->rows();
  return report;
}

std::string dump(self_ptr self) {
  const node_state& s = self->state;
  std::string text = s.options.details ? s.options.details() : std::string();
  for (const auto& [key, lent] : s.lent)
    text += fmt::format("{}: lent to {}\n", key, lent.request.borrower.name);
  return text + (s.lent.empty() ? "no lane is lent\n" : "");
}

}  // namespace

node_actor spawn_node(caf::actor_system& system, actor_identity identity, node_options options) {
  return spawn_metered<node_actor, node_state>(
      system,
      runs_as::scheduled,
      std::move(identity),
      [options = std::move(options)](self_ptr self) -> node_actor::behavior_type {
        self->state.options = options;
        self->set_down_handler([self](const caf::down_msg& m) { on_down(self, m); });
        if (options.join) self->send(self, tick_atom_v);
        return {
            [=](const start_run&) {},
            [=](inspect_atom) {
              self->stats().complete();
              return report_of(self);
            },
            [=](dump_atom) { return dump(self); },
            [=](hello_atom, const std::string& text) { return greet(self, text); },
            [=](lend_atom, const std::string& text) { return lend(self, text); },
            [=](tick_atom) { try_to_join(self); },
        };
      });
}

}  // namespace dflash

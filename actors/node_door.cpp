#include "actors/node_door.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <exception>
#include <map>
#include <string>
#include <utility>

#include "config/run_config.hpp"

namespace dflash {

namespace {

struct node_door_state {
  static inline const char* name = "node_door";
  std::map<caf::actor_addr, std::string> joined;
};

using self_ptr = node_door_actor::stateful_pointer<node_door_state>;

}  // namespace

node_door_actor spawn_node_door(caf::actor_system& system,
                                node_greeting self_greeting,
                                network_settings network,
                                std::shared_ptr<node_directory> nodes) {
  return system.spawn([=](self_ptr self) -> node_door_actor::behavior_type {
    self->set_down_handler([=](const caf::down_msg& m) {
      const auto known = self->state.joined.find(m.source);
      if (known == self->state.joined.end()) return;
      spdlog::warn("node {} is gone ({})", known->second, caf::to_string(m.reason));
      nodes->remove(known->second, m.source);
      self->state.joined.erase(known);
    });
    return {[=](offer_atom, const std::string& text) -> caf::result<std::string> {
      node_greeting there;
      try {
        there = parse_greeting(text);
      } catch (const std::exception& e) {
        return caf::make_error(caf::sec::invalid_argument, std::string(e.what()));
      }
      const std::string answer = to_json(self_greeting);
      if (const std::string why = disagreement(self_greeting, there); !why.empty()) {
        spdlog::warn("node {} may not join: {}", there.name, why);
        return answer;
      }
      if (!is_node_name(there.name))
        return caf::make_error(caf::sec::invalid_argument, std::string("no name of a node"));
      const caf::strong_actor_ptr node = self->current_sender();
      if (!node) return answer;
      auto promise = self->make_response_promise<std::string>();
      // Where its data ports are: at the address that its connection comes from.
      self->request(connector_of(self->system(), network),
                    caf::duration{network.timeout},
                    caf::get_atom_v,
                    node->node())
          .then(
              [=](const caf::node_id&, const std::string& host, uint16_t) mutable {
                spdlog::info(
                    "node {} joined from {}: {}", there.name, host, fmt::join(there.lanes, ", "));
                const caf::actor_addr address = caf::actor_cast<caf::actor_addr>(node);
                self->monitor(address);
                self->state.joined[address] = there.name;
                nodes->add(there.name, {{host, 0}, caf::actor_cast<node_actor>(node)});
                promise.deliver(answer);
              },
              [=](const caf::error& e) mutable { promise.deliver(e); });
      return promise;
    }};
  });
}

}  // namespace dflash

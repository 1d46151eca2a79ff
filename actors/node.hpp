// The node: lends lanes of its process to runs on other hosts. A lane is a detached actor that
// holds a data port (messages/wire_server.hpp); what it computes is brought by bin/. It lives as
// long as the actor that asked for it: a run that is gone, cut off or frozen loses its lanes and
// all their memory, and they can be lent again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/network.hpp"
#include "messages/node_actors.hpp"
#include "messages/node_greeting.hpp"
#include "messages/wire_server.hpp"

namespace dflash {

// What a lane does for its borrower; made, called and dropped in the thread of the borrower's data
// connection.
using lane_maker = std::function<wire_session(const lend_request&)>;

struct node_options {
  node_greeting self;  // its lanes among it
  wire_address data;   // the host that data ports are bound at; port 0
  network_settings network;
  lane_maker make;
  std::function<std::string()> details = {};  // for the dump; must not block
  std::optional<wire_address> join;           // of a run to go to, again and again
  std::chrono::milliseconds join_every{1000};
  // A lane that nobody connects to is free again after this.
  std::chrono::milliseconds unused{15000};
};

struct lent_lane {
  lent_lane_actor actor;
  caf::actor_addr borrower;
  lend_request request;
  std::string token;
};

struct node_state {
  static inline const char* name = "node";
  node_options options;
  int64_t born_ns = now_ns();
  std::map<std::string, lent_lane> lent;  // by "PURPOSE LANE"
  // Of the run that it has joined.
  caf::strong_actor_ptr joined;
  std::string last_problem;  // said once
};

node_actor spawn_node(caf::actor_system& system, actor_identity identity, node_options options);

}  // namespace dflash

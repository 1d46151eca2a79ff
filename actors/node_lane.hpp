// A lane that a node has lent: a data port that one connection with the right token may use, once.
// Ends when that connection does, when nobody comes, or when the node says so; its memory is free
// when it has ended.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "actors/node.hpp"

namespace dflash {

struct node_lane_options {
  caf::actor_addr owner;  // the node: the lane ends with it
  lend_request request;
  std::string token;
  wire_address at;
  network_settings network;
  lane_maker make;
  std::chrono::milliseconds unused{15000};
  std::shared_ptr<mailbox_stats> stats;  // of what it computes
};

lent_lane_actor spawn_node_lane(caf::actor_system& system, node_lane_options options);

}  // namespace dflash

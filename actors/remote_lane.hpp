// A lane of another host as this run sees it: asks the node for it by CAF, then calls it over a
// data connection of its own. Blocks, for finite times; used by one thread at a time, the lane's.
#pragma once

#include <caf/all.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "actors/runtime/lane_place.hpp"
#include "actors/runtime/network.hpp"
#include "actors/runtime/node_directory.hpp"
#include "messages/node_greeting.hpp"
#include "messages/wire_client.hpp"

namespace dflash {

struct remote_lane_options {
  caf::actor_system* system = nullptr;  // outlives it
  network_settings network;
  std::shared_ptr<const node_directory> nodes;
  node_greeting self;   // this run's
  std::string node;     // "nodeB"
  std::string lane;     // "cpu:0"
  std::string purpose;  // "target" or "drafter"
  // Makes the lane what this run needs, by calls; each time that it is lent anew.
  std::function<void(wire_client&)> prepare;
};

class remote_lane {
public:
  explicit remote_lane(remote_lane_options options);
  ~remote_lane();
  remote_lane(const remote_lane&) = delete;
  remote_lane& operator=(const remote_lane&) = delete;

  // Is lent and prepared when it returns; nothing if it is already. Throws std::runtime_error
  // naming node and lane.
  void connect();
  // A lost connection is closed before the exception leaves: the next call begins anew, with a lane
  // that is only prepared. Throws as connect.
  wire_message call(const wire_message& request, const tensor_places& into = {});
  // Gives the lane back.
  void close();

  const std::shared_ptr<lane_place>& place() const { return place_; }
  // Of the node, once connected.
  const node_greeting& there() const { return there_; }

private:
  [[noreturn]] void lose(const std::string& why);

  remote_lane_options options_;
  std::shared_ptr<lane_place> place_;
  node_greeting there_;
  // Whom the node watches: the lane is free when this actor is gone.
  std::unique_ptr<caf::scoped_actor> borrower_;
  std::optional<wire_client> data_;
};

// Asks a node who it is; throws std::runtime_error if it does not answer or is of another version.
node_actor greet_node(caf::scoped_actor& self,
                      const node_contact& contact,
                      const network_settings& network,
                      const node_greeting& here,
                      node_greeting& there);

}  // namespace dflash

// What other processes find at net.listen: before a run its door for nodes that join, while it runs
// its inspector, which knows the door.
#pragma once

#include <caf/all.hpp>

#include <memory>

#include "actors/runtime/network.hpp"
#include "actors/runtime/node_directory.hpp"
#include "bin/run_folder.hpp"
#include "messages/node_actors.hpp"

namespace dflash {

class run_listener {
public:
  /// All of these outlive it; destroyed before the system is.
  run_listener(caf::actor_system& system,
               wire_address at,
               network_settings network,
               std::shared_ptr<node_directory> nodes,
               const run_folder& folder);
  ~run_listener();  // ends the door, forgets the nodes
  run_listener(const run_listener&) = delete;
  run_listener& operator=(const run_listener&) = delete;

  /// Throws error as publish_actor.
  void open_door();
  /// In the place of what was there, at the same port; writes the address into the run folder.
  void publish(const run_inspector_actor& inspector);
  const node_door_actor& door() const { return door_; }

private:
  void replace(const caf::strong_actor_ptr& actor, std::set<std::string> signatures);

  caf::actor_system& system_;
  wire_address at_;
  network_settings network_;
  std::shared_ptr<node_directory> nodes_;
  const run_folder& folder_;
  node_door_actor door_;
  caf::strong_actor_ptr published_;
};

}  // namespace dflash

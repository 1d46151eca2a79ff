// Where nodes that join by themselves come in: puts them into the run's directory, and takes them
// out when they are gone. Scheduled.
#pragma once

#include <memory>

#include "actors/runtime/metered.hpp"
#include "actors/runtime/network.hpp"
#include "actors/runtime/node_directory.hpp"
#include "messages/node_greeting.hpp"

namespace dflash {

node_door_actor spawn_node_door(caf::actor_system& system,
                                node_greeting self,
                                network_settings network,
                                std::shared_ptr<node_directory> nodes);

}  // namespace dflash

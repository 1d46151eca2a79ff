#include "bin/run_listener.hpp"

#include <spdlog/spdlog.h>

#include <set>
#include <string>
#include <utility>

#include "actors/node_door.hpp"
#include "actors/run_watch.hpp"
#include "bin/lane_order.hpp"
#include "data/files.hpp"

namespace dflash {

run_listener::run_listener(caf::actor_system& system,
                           wire_address at,
                           network_settings network,
                           std::shared_ptr<node_directory> nodes,
                           const run_folder& folder)
    : system_(system),
      at_(std::move(at)),
      network_(std::move(network)),
      nodes_(std::move(nodes)),
      folder_(folder) {}

run_listener::~run_listener() {
  nodes_->clear();
  if (door_) caf::anon_send_exit(door_, caf::exit_reason::user_shutdown);
}

void run_listener::replace(const caf::strong_actor_ptr& actor, std::set<std::string> signatures) {
  if (published_) unpublish_actor(system_, published_, at_, network_);
  published_ = nullptr;
  at_ = publish_actor(system_, actor, std::move(signatures), at_, network_, "net.listen");
  published_ = actor;
}

void run_listener::open_door() {
  node_greeting self = own_greeting();
  self.name = folder_.path().string() + " of " + node_name();
  door_ = spawn_node_door(system_, std::move(self), network_, nodes_);
  replace(caf::actor_cast<caf::strong_actor_ptr>(door_), system_.message_types(door_));
  spdlog::info("nodes may join at {}", at_.text());
}

void run_listener::publish(const run_inspector_actor& inspector) {
  replace(caf::actor_cast<caf::strong_actor_ptr>(inspector), system_.message_types(inspector));
  write_file_atomically(folder_.address(), at_.text() + "\n");
}

}  // namespace dflash

// Which nodes a run knows and how they are reached: those of its configuration, and those that have
// joined. Any thread.
#pragma once

#include <caf/all.hpp>

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "messages/node_actors.hpp"
#include "messages/wire_address.hpp"

namespace dflash {

struct node_contact {
  wire_address address;  // of control; the host also of data
  node_actor joined;     // of a node that came by itself; invalid: connect to the address
};

class node_directory {
public:
  void add(const std::string& name, node_contact contact) {
    const std::lock_guard guard(mutex_);
    nodes_.insert_or_assign(name, std::move(contact));
  }
  // Unless a later one has its name.
  void remove(const std::string& name, const caf::actor_addr& joined) {
    const std::lock_guard guard(mutex_);
    const auto known = nodes_.find(name);
    if (known != nodes_.end() && known->second.joined && known->second.joined.address() == joined)
      nodes_.erase(known);
  }
  std::optional<node_contact> find(const std::string& name) const {
    const std::lock_guard guard(mutex_);
    const auto known = nodes_.find(name);
    return known == nodes_.end() ? std::nullopt : std::optional(known->second);
  }
  // Handles keep a system alive: before it goes.
  void clear() {
    const std::lock_guard guard(mutex_);
    nodes_.clear();
  }

private:
  mutable std::mutex mutex_;
  std::map<std::string, node_contact> nodes_;
};

}  // namespace dflash

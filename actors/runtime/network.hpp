// How CAF's connections between hosts are set up: addresses, times, certificates. What blocks here
// has a finite timeout.
#pragma once

#include <caf/all.hpp>

#include <caf/io/all.hpp>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>

#include "messages/wire_address.hpp"
#include "messages/wire_limits.hpp"

namespace dflash {

struct network_settings {
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds timeout{4000};  // of silence: the peer is lost
  wire_security security;                   // of control and data connections alike

  wire_limits data_limits() const;
};

// Whoever opens connections: with TLS CAF's OpenSSL module, which must be loaded then.
caf::io::middleman_actor connector_of(caf::actor_system& system, const network_settings& network);

// The actor can be found at this address from now on; returns the port. Takes the first address of
// a name that can be bound. Throws error naming `where`: taken, forbidden, unknown, or reachable by
// others without TLS and `insecure`.
wire_address publish_actor(caf::actor_system& system,
                           const caf::strong_actor_ptr& actor,
                           std::set<std::string> signatures,
                           const wire_address& at,
                           const network_settings& network,
                           const std::string& where);

// Not any more. Blocks for the timeout at most.
void unpublish_actor(caf::actor_system& system,
                     const caf::strong_actor_ptr& actor,
                     const wire_address& at,
                     const network_settings& network);

template <class Handle>
wire_address publish_actor(const Handle& actor,
                           const wire_address& at,
                           const network_settings& network,
                           const std::string& where) {
  caf::actor_system& system = actor.home_system();
  return publish_actor(system,
                       caf::actor_cast<caf::strong_actor_ptr>(actor),
                       system.message_types(actor),
                       at,
                       network,
                       where);
}

// Addresses that other machines reach need TLS or `insecure`: throws error naming `where` without.
// Returns whether it is one.
bool check_exposure(const wire_address& address,
                    const network_settings& network,
                    const std::string& where);

// Whoever is published there, tried at all addresses of the name. Blocks for about the timeout at
// most. Throws std::runtime_error naming every address tried.
caf::strong_actor_ptr find_published(caf::scoped_actor& self,
                                     const wire_address& at,
                                     const network_settings& network,
                                     std::set<std::string>& signatures);

}  // namespace dflash

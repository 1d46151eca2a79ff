#include "actors/runtime/network.hpp"

#include <algorithm>
#include <caf/openssl/all.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "messages/wire_socket.hpp"

namespace dflash {

namespace {

// Of "127.0.0.1:7000", "[::1]:7000".
std::string host_of(const endpoint& place) {
  return parse_wire_address(place.text(), "address").host;
}

}  // namespace

wire_limits network_settings::data_limits() const {
  wire_limits limits;
  limits.max_bytes = uint64_t{64} << 30;  // states of the largest drafters; chosen by who receives
  limits.heartbeat = heartbeat;
  limits.timeout = timeout;
  limits.connect = std::min<std::chrono::milliseconds>(limits.connect, timeout);
  return limits;
}

caf::io::middleman_actor connector_of(caf::actor_system& system, const network_settings& network) {
  return network.security.tls() ? system.openssl_manager().actor_handle()
                                : system.middleman().actor_handle();
}

bool check_exposure(const wire_address& address,
                    const network_settings& network,
                    const std::string& where) {
  if (is_loopback(address)) return false;
  if (!network.security.tls() && !network.security.insecure)
    throw error(
        "other machines reach " + address.text() + ", and there is no TLS",
        where,
        "certificates: `dflash cert`, then --tls DIR (net.tls); in a network that you trust "
        "--insecure (net.insecure = true)");
  return true;
}

wire_address publish_actor(caf::actor_system& system,
                           const caf::strong_actor_ptr& actor,
                           std::set<std::string> signatures,
                           const wire_address& at,
                           const network_settings& network,
                           const std::string& where) {
  check_exposure(at, network, where);
  std::string problem;
  std::vector<endpoint> places;
  try {
    places = resolve(at);
  } catch (const std::runtime_error& e) {
    problem = e.what();
  }
  for (const endpoint& place : places) {
    const std::string host = host_of(place);
    caf::scoped_actor self{system};
    uint16_t bound = 0;
    self->request(connector_of(system, network),
                  caf::duration{network.timeout},
                  caf::publish_atom_v,
                  at.port,
                  actor,
                  signatures,
                  host,
                  true)
        .receive([&](uint16_t port) { bound = port; },
                 [&](const caf::error& e) {
                   problem += (problem.empty() ? "" : ", ") + host + ": " + system.render(e);
                 });
    if (bound != 0) return {host, bound};
  }
  throw error("cannot listen on " + at.text() + ": " + problem,
              where,
              "another process has the port? port 0 takes a free one");
}

void unpublish_actor(caf::actor_system& system,
                     const caf::strong_actor_ptr& actor,
                     const wire_address& at,
                     const network_settings& network) {
  caf::scoped_actor self{system};
  self->request(connector_of(system, network),
                caf::duration{network.timeout},
                caf::unpublish_atom_v,
                caf::actor_cast<caf::actor_addr>(actor),
                at.port)
      .receive([] {}, [](const caf::error&) {});
}

caf::strong_actor_ptr find_published(caf::scoped_actor& self,
                                     const wire_address& at,
                                     const network_settings& network,
                                     std::set<std::string>& signatures) {
  // CAF's own connect blocks its network thread as long as the kernel likes, and tries one address:
  // it is given one that is known to answer.
  endpoint answers;
  connect_to_any(resolve(at), wire_clock::now() + network.data_limits().connect, answers);
  caf::strong_actor_ptr found;
  std::string problem;
  self->request(connector_of(self->system(), network),
                caf::duration{network.timeout},
                caf::connect_atom_v,
                host_of(answers),
                answers.port())
      .receive(
          [&](const caf::node_id&,
              const caf::strong_actor_ptr& actor,
              const std::set<std::string>& types) {
            found = actor;
            signatures = types;
          },
          [&](const caf::error& e) { problem = self->system().render(e); });
  if (!found)
    throw std::runtime_error(answers.text() +
                             (problem.empty() ? ": nothing is published there" : ": " + problem));
  return found;
}

}  // namespace dflash

// Lends what a process can compute to others: answers calls over data connections.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "messages/wire_address.hpp"
#include "messages/wire_limits.hpp"
#include "messages/wire_message.hpp"

namespace dflash {

// Who connects. Its certificate, where there is TLS, is already found good.
struct wire_peer {
  std::string address;  // "[::1]:40120"
  std::string name;     // common name of its certificate; empty without TLS
  std::string token;
};

// What one connection does. Made, called and destroyed in the connection's own thread.
struct wire_session {
  // Answers one call; what it throws goes to the caller as wire_refused, and the session goes on.
  std::function<wire_message(wire_message)> answer;
  tensor_places places = {};  // for the tensors of requests
};

// Decides by the token. Throws to refuse, with what the peer shall read; called from several
// threads. Compare secrets by same_secret.
using wire_sessions = std::function<wire_session(const wire_peer&)>;

// In a time that does not tell where they differ.
bool same_secret(std::string_view a, std::string_view b);

struct wire_server_counts {
  uint64_t accepted = 0;  // connections
  uint64_t refused = 0;   // of these, without a session: garbage, silence, certificate, token
  uint64_t lost = 0;      // sessions that ended by a fault
  uint64_t open = 0;      // sessions now
  uint64_t calls = 0;
};

// Each connection has a thread of its own, in which its handler runs, and one that sends heartbeats
// meanwhile. A stranger gets a thread for limits.timeout at most and no memory above 1 KiB; when
// too many wait, the one that has waited longest goes.
class wire_server {
public:
  // `notice` hears one line for each connection that is refused or lost; any thread.
  // Throws error if the address cannot be bound, the certificates cannot be read, or the address is
  // not loopback and there is no TLS.
  wire_server(const wire_address& listen,
              wire_security security,
              wire_limits limits,
              wire_sessions sessions,
              std::function<void(const std::string&)> notice = {});
  wire_server(const wire_server&) = delete;
  wire_server& operator=(const wire_server&) = delete;
  // Ends all connections at once and waits for their threads: as long as the handlers that run.
  ~wire_server();

  uint16_t port() const;
  std::string address() const;  // what was bound: "[::1]:7000"
  // Any thread.
  wire_server_counts counts() const;

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace dflash

// TCP sockets of data connections: names looked up, connected and listened on. All sockets are
// non-blocking and closed in child processes.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "data/files.hpp"
#include "messages/wire_address.hpp"
#include "messages/wire_limits.hpp"

namespace dflash {

using wire_clock = std::chrono::steady_clock;

struct endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;

  std::string text() const;  // "127.0.0.1:7000", "[::1]:7000"
  uint16_t port() const;
  bool is_loopback() const;
};

// All addresses of a name, in the system's order. Blocks as long as the system's resolver does.
// Throws wire_lost if there are none.
std::vector<endpoint> resolve(const wire_address& address);

// Throws error for an address that is not of this machine, where there is neither TLS nor leave to
// do without.
void check_may_use(const endpoint& endpoint, const wire_security& security);

// The first that answers; one that does not gets its share of the time that is left. Throws
// wire_lost that names each address and what came of it.
file_descriptor connect_to_any(std::span<const endpoint> endpoints,
                               wire_clock::time_point deadline,
                               endpoint& connected);

// Binds the first address of the name that can be bound. Throws error.
file_descriptor listen_on(const wire_address& address, endpoint& bound);

// For a connected socket: no delay of small frames; a peer that is cut off is noticed by the kernel
// within the timeout, also while nothing is sent.
void set_connection_options(int fd, const wire_limits& limits);

// Waits for poll events. False when the deadline is over; true also for errors, which the next call
// on the socket tells.
bool wait_for(int fd, short events, wire_clock::time_point deadline);

}  // namespace dflash

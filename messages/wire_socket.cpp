#include "messages/wire_socket.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "config/error.hpp"

namespace dflash {

namespace {

std::string reason(int code) {
  return std::generic_category().message(code);
}

const sockaddr* plain(const endpoint& e) {
  return reinterpret_cast<const sockaddr*>(&e.address);
}

void set_option(int fd, int level, int name, int value) {
  // Options make things quicker or sooner noticed; without one the connection is still right.
  static_cast<void>(::setsockopt(fd, level, name, &value, sizeof value));
}

// "" if it is connected.
std::string try_connect(const endpoint& to, wire_clock::time_point until, file_descriptor& out) {
  file_descriptor fd(::socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return reason(errno);
  if (::connect(fd.get(), plain(to), to.length) != 0) {
    if (errno != EINPROGRESS) return reason(errno);
    if (!wait_for(fd.get(), POLLOUT, until)) return "no answer";
    int status = 0;
    socklen_t size = sizeof status;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &status, &size);
    if (status != 0) return reason(status);
  }
  // Without a listener TCP may connect a socket with itself, where its own port happens to fit.
  endpoint own;
  own.length = sizeof own.address;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.address), &own.length);
  if (own.length == to.length && own.text() == to.text()) return reason(ECONNREFUSED);
  out = std::move(fd);
  return {};
}

}  // namespace

std::string endpoint::text() const {
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (::getnameinfo(plain(*this),
                    length,
                    host,
                    sizeof host,
                    service,
                    sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return wire_address{host, port()}.text();
}

uint16_t endpoint::port() const {
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool endpoint::is_loopback() const {
  if (address.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  if (address.ss_family != AF_INET) return false;
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
}

std::vector<endpoint> resolve(const wire_address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int status = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list))
    throw wire_lost("cannot find the host \"" + address.host + "\": " + ::gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<endpoint> found;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    endpoint e;
    std::memcpy(&e.address, a->ai_addr, a->ai_addrlen);
    e.length = a->ai_addrlen;
    found.push_back(e);
  }
  if (found.empty()) throw wire_lost("the host \"" + address.host + "\" has no address");
  return found;
}

void check_may_use(const endpoint& endpoint, const wire_security& security) {
  if (security.tls() || security.insecure || endpoint.is_loopback()) return;
  throw error("the address " + endpoint.text() +
                  " is not of this machine alone, and without TLS "
                  "anybody who reaches it may use and read what is there",
              {},
              "give certificates (`dflash cert --help`), or --insecure in a network of your own");
}

file_descriptor connect_to_any(std::span<const endpoint> endpoints,
                               wire_clock::time_point deadline,
                               endpoint& connected) {
  std::string tried;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const auto now = wire_clock::now();
    const auto left = std::max(deadline - now, wire_clock::duration::zero());
    file_descriptor fd;
    const std::string why =
        try_connect(endpoints[i], now + left / static_cast<int64_t>(endpoints.size() - i), fd);
    if (why.empty()) {
      connected = endpoints[i];
      return fd;
    }
    tried += (tried.empty() ? "" : ", ") + endpoints[i].text() + " (" + why + ")";
  }
  throw wire_lost("cannot connect to " + tried);
}

file_descriptor listen_on(const wire_address& address, endpoint& bound) {
  std::string why, hint = "another process has the port? port 0 takes a free one";
  std::vector<endpoint> found;
  try {
    found = resolve(address);
  } catch (const wire_lost& lost) {
    throw error("cannot listen on " + address.text() + ": " + lost.what(),
                {},
                "an address of this machine, or 127.0.0.1 for this machine alone");
  }
  for (const endpoint& at : found) {
    file_descriptor fd(
        ::socket(at.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto failed = [&] {
      why += (why.empty() ? "" : ", ") + reason(errno);
      if (errno == EACCES) hint = "ports below 1024 need rights; take one above";
      if (errno == EADDRNOTAVAIL) hint = "the address is not one of this machine";
    };
    if (!fd) {
      failed();
      continue;
    }
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (at.address.ss_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (::bind(fd.get(), plain(at), at.length) != 0 || ::listen(fd.get(), 256) != 0) {
      failed();
      continue;
    }
    bound.length = sizeof bound.address;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.address), &bound.length);
    return fd;
  }
  throw error("cannot listen on " + address.text() + ": " + why, {}, hint);
}

void set_connection_options(int fd, const wire_limits& limits) {
  const auto ms = static_cast<int>(limits.timeout.count());
  const int seconds = std::max(1, ms / 4000);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms);
}

bool wait_for(int fd, short events, wire_clock::time_point deadline) {
  pollfd p{fd, events, 0};
  for (;;) {
    int wait = -1;
    if (deadline != wire_clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - wire_clock::now());
      wait = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
    }
    const int ready = ::poll(&p, 1, wait);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw wire_lost("poll: " + reason(errno));
    if (ready == 0 && wire_clock::now() >= deadline) return false;
  }
}

}  // namespace dflash

// Stands between a client and a server and does to their bytes what it is told.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <span>
#include <thread>

#include "messages/wire_socket.hpp"

namespace dflash {

// Of one connection. `touch` sees every piece on its way, with the offset of its first byte in that
// direction, may change it, and ends the connection by returning false.
class wire_proxy {
public:
  using toucher = std::function<bool(bool to_server, std::span<std::byte>, uint64_t offset)>;

  wire_proxy(uint16_t server, toucher touch) {
    endpoint bound;
    socket_ = listen_on({"127.0.0.1", 0}, bound);
    port_ = bound.port();
    thread_ = std::thread([this, server, touch = std::move(touch)] { forward(server, touch); });
  }
  ~wire_proxy() { thread_.join(); }
  uint16_t port() const { return port_; }

private:
  void forward(uint16_t server, const toucher& touch) {
    const auto late = wire_clock::now() + std::chrono::seconds(20);
    if (!wait_for(socket_.get(), POLLIN, late)) return;
    const file_descriptor client(
        ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    endpoint to;
    const file_descriptor peer = connect_to_any(resolve({"127.0.0.1", server}), late, to);
    std::array<uint64_t, 2> offsets{};
    std::vector<std::byte> buffer(1 << 16);
    for (;;) {
      std::array<pollfd, 2> both{pollfd{client.get(), POLLIN, 0}, pollfd{peer.get(), POLLIN, 0}};
      if (::poll(both.data(), 2, 20'000) <= 0) return;
      for (size_t i = 0; i < 2; ++i) {
        if (both[i].revents == 0) continue;
        const ssize_t n = ::recv(both[i].fd, buffer.data(), buffer.size(), 0);
        if (n <= 0) return;
        const auto piece = std::span(buffer).first(static_cast<size_t>(n));
        if (!touch(i == 0, piece, offsets[i])) return;
        offsets[i] += piece.size();
        if (!send_all(both[1 - i].fd, piece, late)) return;
      }
    }
  }
  static bool send_all(int fd, std::span<const std::byte> bytes, wire_clock::time_point late) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0)
        bytes = bytes.subspan(static_cast<size_t>(n));
      else if (errno != EAGAIN || !wait_for(fd, POLLOUT, late))
        return false;
    }
    return true;
  }

  file_descriptor socket_;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace dflash

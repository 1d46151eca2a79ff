// Servers, clients and peers that speak the data protocol by hand, on loopback.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <functional>
#include <thread>

#include "messages/wire_client.hpp"
#include "messages/wire_exchange.hpp"
#include "messages/wire_server.hpp"

namespace dflash {

// For tests in which a loss is due: long enough that a busy machine does not lose anything earlier.
inline wire_limits impatient() {
  wire_limits limits;
  limits.timeout = std::chrono::milliseconds(400);
  limits.heartbeat = std::chrono::milliseconds(20);
  return limits;
}

inline wire_session echo() {
  return {[](wire_message m) { return m; }, {}};
}
inline wire_sessions always(wire_session session) {
  return [session](const wire_peer&) { return session; };
}

inline wire_address local(uint16_t port) {
  return {"127.0.0.1", port};
}

inline wire_client client_of(const wire_server& server, const wire_limits& limits = {}) {
  return wire_client::connect(local(server.port()), {}, limits, "");
}

// Listens, and lets `speak` say what it will to the first that comes.
class raw_server {
public:
  explicit raw_server(std::function<void(wire_stream&)> speak) {
    endpoint bound;
    socket_ = listen_on(local(0), bound);
    port_ = bound.port();
    thread_ = std::thread([this, speak] {
      if (!wait_for(socket_.get(), POLLIN, in_time())) return;
      const int fd = ::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      wire_stream stream{file_descriptor(fd)};
      try {
        speak(stream);
      } catch (const wire_lost&) {  // the other side has had enough
      }
    });
  }
  ~raw_server() { thread_.join(); }
  uint16_t port() const { return port_; }

  static wire_clock::time_point in_time() { return wire_clock::now() + std::chrono::seconds(20); }

private:
  file_descriptor socket_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// A connection to a server on loopback, for bytes of any kind.
inline std::unique_ptr<wire_stream> raw_client(uint16_t port) {
  endpoint to;
  return std::make_unique<wire_stream>(
      connect_to_any(resolve(local(port)), raw_server::in_time(), to));
}

// Says hello and hears the welcome.
inline std::unique_ptr<wire_stream> greeted_client(uint16_t port,
                                                   const wire_limits& limits = {},
                                                   uint32_t timeout_ms = 4000) {
  auto stream = raw_client(port);
  send_frame(*stream, frame_kind::hello, 0, encode_hello({timeout_ms, ""}), limits);
  const frame_header header = receive_header(*stream, limits, raw_server::in_time());
  if (header.kind != frame_kind::welcome) throw wire_lost("not welcome");
  return stream;
}

// The other end of it.
inline void welcome(wire_stream& stream) {
  const wire_limits limits;
  const auto header = receive_header(stream, limits, raw_server::in_time());
  receive_payload(stream, header, raw_server::in_time());
  send_frame(stream, frame_kind::welcome, 0, {}, limits);
}
inline frame_header take_request(wire_stream& stream) {
  const auto header = receive_header(stream, {}, raw_server::in_time());
  receive_payload(stream, header, raw_server::in_time());
  return header;
}

// Reads until the peer hangs up.
inline void drain(wire_stream& stream) {
  std::array<std::byte, 4096> bytes;
  try {
    for (;;) stream.read(std::span(bytes).first(1), raw_server::in_time());
  } catch (const wire_lost&) {
  }
}

template <class F>
std::string what_of(F&& f) {
  try {
    f();
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return "nothing was thrown";
}

}  // namespace dflash

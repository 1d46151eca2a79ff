// Bytes of one data connection, with or without TLS: blocks, but never beyond a deadline.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "messages/wire_socket.hpp"
#include "messages/wire_tls.hpp"

struct ssl_st;

namespace dflash {

// Used by one thread at a time, but for shut(). Everything throws wire_lost when the peer is gone
// or the deadline is over; the stream is of no use then.
class wire_stream {
public:
  // Of a connected, non-blocking socket.
  explicit wire_stream(file_descriptor socket);
  wire_stream(const wire_stream&) = delete;
  wire_stream& operator=(const wire_stream&) = delete;
  ~wire_stream();

  // The handshake, before anything else. `host`: what the server's certificate has to name. Throws
  // wire_refused where a certificate is not accepted.
  void start_tls_client(const tls_context& context,
                        const std::string& host,
                        wire_clock::time_point deadline);
  void start_tls_server(const tls_context& context, wire_clock::time_point deadline);
  // Common name of the peer's certificate; empty without TLS.
  std::string peer_name() const;

  // Exactly as many bytes.
  void read(std::span<std::byte> out, wire_clock::time_point deadline);
  // The same; false where the peer has hung up before the first byte.
  bool read_unless_closed(std::span<std::byte> out, wire_clock::time_point deadline);
  // Both, one after the other.
  void write(std::span<const std::byte> head,
             std::span<const std::byte> data,
             wire_clock::time_point deadline);
  // Until a byte can be read, or the peer has hung up. False when the deadline is over.
  bool wait_readable(wire_clock::time_point deadline);

  // No more is sent; what was sent is delivered. Waits until the peer has hung up too, or the
  // deadline, and passes over what still comes.
  void finish(wire_clock::time_point deadline) noexcept;
  // From any thread: reads and writes, also those under way, fail from now on.
  void shut() noexcept;

private:
  // 0: the peer has hung up.
  size_t read_some(std::span<std::byte> out, wire_clock::time_point deadline);
  void write_plain(std::span<const std::byte> head,
                   std::span<const std::byte> data,
                   wire_clock::time_point deadline);
  void write_tls(std::span<const std::byte> bytes, wire_clock::time_point deadline);
  void handshake(wire_clock::time_point deadline);
  // After an SSL call that gave `result`: waits for what it needs; false where the peer hung up.
  bool wait_for_tls(int result, wire_clock::time_point deadline);

  struct ssl_free {
    void operator()(ssl_st* ssl) const noexcept;
  };
  file_descriptor socket_;
  std::unique_ptr<ssl_st, ssl_free> ssl_;
};

}  // namespace dflash

// One data connection to a node: calls with tensors, one at a time.
#pragma once

#include <memory>
#include <string_view>

#include "messages/wire_address.hpp"
#include "messages/wire_limits.hpp"
#include "messages/wire_message.hpp"

namespace dflash {

struct wire_counts {
  uint64_t sent_bytes = 0;  // of tensors
  uint64_t received_bytes = 0;
  uint64_t calls = 0;
};

// Used by one thread, but for close(). Movable.
class wire_client {
public:
  // Blocks, for limits.connect at most to connect and limits.timeout for the greeting. Tries every
  // address of a name in turn. `token`: at most 256 bytes, tells the server which session is meant.
  // Throws wire_lost if nobody answers (naming every address tried), wire_refused if the peer is of
  // another version, has no certificate of the CA for this name, or does not know the token; error
  // if the certificates here cannot be read, or an address off this machine is asked for without
  // TLS.
  static wire_client connect(const wire_address& address,
                             const wire_security& security,
                             const wire_limits& limits,
                             std::string_view token);

  wire_client(wire_client&&) noexcept;
  wire_client& operator=(wire_client&&) noexcept;
  ~wire_client();

  // Blocks until the answer is there. Throws wire_refused with what the peer's handler threw (the
  // connection stays good); wire_lost if the peer is gone or frozen, an answer is damaged or above
  // the limits, or `into` threw (then with that text). After wire_lost every call throws wire_lost.
  wire_message call(const wire_message& request, const tensor_places& into = {});

  // From any thread: the connection ends, a call under way throws wire_lost at once. Again:
  // nothing.
  void close() noexcept;
  bool is_open() const noexcept;

  const wire_counts& counts() const;

private:
  struct connection;
  explicit wire_client(std::unique_ptr<connection> connection);
  std::unique_ptr<connection> connection_;
};

}  // namespace dflash

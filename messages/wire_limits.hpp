// Limits, times and certificates of data connections, and what goes wrong with them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <stdexcept>

namespace dflash {

struct wire_limits {
  uint64_t max_bytes = uint64_t{4} << 30;     // tensors of one message together, either way
  uint32_t max_tensors = 4096;                // of one message
  uint32_t max_text_bytes = 1 << 20;          // method and body of one message
  uint32_t chunk_bytes = 256 << 10;           // sent at once; any side takes up to 1 MiB
  uint32_t max_connections = 64;              // of a server: those with a session
  std::chrono::milliseconds connect{2000};    // to all addresses of a name together
  std::chrono::milliseconds heartbeat{1000};  // "still computing", while a handler runs
  // A peer that neither sends nor takes a whole frame for so long is lost.
  std::chrono::milliseconds timeout{4000};
  // A call that has no answer after so long is lost, though its peer says that it computes.
  std::chrono::milliseconds call{600'000};
};

// Files in PEM, of `dflash cert`. Both sides show a certificate of the same private CA; a client
// checks the server's names too.
struct wire_security {
  std::filesystem::path ca;           // ca.pem; empty: no TLS
  std::filesystem::path certificate;  // of this node
  std::filesystem::path key;
  // Without TLS, addresses other than loopback are refused unless this is set.
  bool insecure = false;

  bool tls() const { return !ca.empty(); }
};

// The peer is gone, frozen, cut off, or speaks nonsense: the connection is of no more use.
struct wire_lost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The peer, or this side for it, says no: a wrong token, version or certificate, or a handler that
// threw. After a refused call the connection is still good; after a refused connect there is none.
struct wire_refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace dflash

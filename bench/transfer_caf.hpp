// The comparison of bench/transfer: the same bytes over CAF's own connection, in chunks of at most
// 1 MiB, a fixed number of them under way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace dflash {

// Takes chunks and forgets them, until the process ends.
class caf_sink {
public:
  caf_sink();
  ~caf_sink();
  uint16_t port() const;

private:
  struct state;
  std::unique_ptr<state> state_;
};

class caf_source {
public:
  explicit caf_source(uint16_t port);
  ~caf_source();
  // Sends so many bytes and waits until all are there.
  void send(uint64_t bytes, uint64_t chunk_bytes, uint64_t window);

private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace dflash

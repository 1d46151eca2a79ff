// "Still computing", said to a caller while a handler runs.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "messages/wire_stream.hpp"

namespace dflash {

// Sends heartbeats from a thread of its own while run() runs, and never otherwise: then the stream
// belongs to the thread that calls run().
class wire_heartbeats {
public:
  wire_heartbeats(wire_stream& stream,
                  const wire_limits& limits,
                  std::chrono::milliseconds interval);
  wire_heartbeats(const wire_heartbeats&) = delete;
  wire_heartbeats& operator=(const wire_heartbeats&) = delete;
  ~wire_heartbeats();

  // Runs `work` of call `id`. Throws what it throws, or wire_lost if the peer has gone meanwhile.
  template <class Work>
  auto run(uint64_t id, Work&& work) {
    const scope running(*this, id);
    auto result = work();
    check_peer();
    return result;
  }

private:
  struct scope {
    scope(wire_heartbeats& of, uint64_t id) : of(of) { of.begin(id); }
    ~scope() { of.end(); }
    wire_heartbeats& of;
  };
  void begin(uint64_t id);
  void end();
  void check_peer();
  void loop();

  wire_stream& stream_;
  const wire_limits& limits_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;  // held while a heartbeat is sent
  std::condition_variable changed_;
  std::optional<uint64_t> running_;  // id of the call
  uint64_t runs_ = 0;
  std::string lost_;  // why the peer has gone
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace dflash

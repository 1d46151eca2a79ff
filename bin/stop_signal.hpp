// SIGINT and SIGTERM for commands that work in one process without actors: the first asks for an
// orderly stop, the second ends the process at once; nothing on disk is ever half written.
#pragma once

#include <csignal>

namespace dflash {

/// Listens while it lives; one at a time.
class stop_signal {
public:
  stop_signal();
  ~stop_signal();
  stop_signal(const stop_signal&) = delete;
  stop_signal& operator=(const stop_signal&) = delete;

  bool asked() const;

private:
  struct sigaction before_[2] = {};
};

}  // namespace dflash

#include "bin/stop_signal.hpp"

#include <cstdlib>

namespace dflash {

namespace {

volatile std::sig_atomic_t signals = 0;

void note_signal(int number) {
  if (signals != 0) std::_Exit(128 + number);
  signals = 1;
}

}  // namespace

stop_signal::stop_signal() {
  signals = 0;
  struct sigaction action = {};
  action.sa_handler = note_signal;
  sigaction(SIGINT, &action, &before_[0]);
  sigaction(SIGTERM, &action, &before_[1]);
}

stop_signal::~stop_signal() {
  sigaction(SIGINT, &before_[0], nullptr);
  sigaction(SIGTERM, &before_[1], nullptr);
}

bool stop_signal::asked() const {
  return signals != 0;
}

}  // namespace dflash

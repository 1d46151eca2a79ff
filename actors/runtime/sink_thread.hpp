// A sink of metrics with a thread and a bounded queue of its own: whoever feeds it never waits. A
// sink that is too slow loses the newest lines, which is counted; one that fails is reported once
// and tried again with each line.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "observe/metrics_line.hpp"
#include "observe/run_view.hpp"

namespace dflash {

struct metrics_sink {
  std::string name;
  // Called in the sink's own thread; may block, may throw.
  std::function<void(const metrics_line&)> take;
  // Likewise, once, after the last line; may be empty.
  std::function<void()> finish = {};
  std::chrono::milliseconds patience{3000};  // at the end of the run
};

class sink_thread {
public:
  static constexpr std::size_t queue_limit = 256;  // lines, each below 10 kB

  explicit sink_thread(metrics_sink sink);
  ~sink_thread();  // as close()
  sink_thread(const sink_thread&) = delete;
  sink_thread& operator=(const sink_thread&) = delete;

  // Waits for what is queued, at most `patience`; a sink that hangs is left behind with a warning.
  // What is offered later is dropped. Again: nothing.
  void close();

  // Any thread, never blocks for longer than a queue operation. False: dropped.
  bool offer(std::shared_ptr<const metrics_line> line);
  sink_view view() const;

private:
  struct shared;
  static void run(const std::shared_ptr<shared>& s);

  std::shared_ptr<shared> shared_;  // outlives a thread that is left behind
  std::thread thread_;
};

}  // namespace dflash

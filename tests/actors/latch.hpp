#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace dflash::pipeline_test {

// A point in one thread that others wait for; who waits in vain goes on, and the test's checks
// fail.
class latch {
public:
  void open() {
    {
      const std::lock_guard guard(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return open_; });
  }
  bool is_open() const {
    const std::lock_guard guard(mutex_);
    return open_;
  }

private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace dflash::pipeline_test

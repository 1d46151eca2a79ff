#include "actors/runtime/sink_thread.hpp"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

namespace dflash {

struct sink_thread::shared {
  metrics_sink sink;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<const metrics_line>> queue;
  uint64_t written = 0, dropped = 0;
  bool closing = false, done = false, failed = false;
};

sink_thread::sink_thread(metrics_sink sink) : shared_(std::make_shared<shared>()) {
  shared_->sink = std::move(sink);
  thread_ = std::thread([s = shared_] { run(s); });
}

void sink_thread::run(const std::shared_ptr<shared>& s) {
  std::unique_lock lock(s->mutex);
  const auto attempt = [&](const auto& work) {
    lock.unlock();
    std::string problem;
    try {
      work();
    } catch (const std::exception& e) {
      problem = e.what();
    }
    lock.lock();
    if (!problem.empty() && !s->failed)
      spdlog::error("{} cannot be written, training goes on: {}", s->sink.name, problem);
    s->failed = !problem.empty();
    return problem.empty();
  };
  while (true) {
    s->changed.wait(lock, [&] { return s->closing || !s->queue.empty(); });
    if (s->queue.empty()) break;
    const auto line = std::move(s->queue.front());
    s->queue.pop_front();
    if (attempt([&] { s->sink.take(*line); }))
      ++s->written;
    else
      ++s->dropped;
  }
  if (s->sink.finish) attempt(s->sink.finish);
  s->done = true;
  s->changed.notify_all();
}

sink_thread::~sink_thread() {
  close();
}

void sink_thread::close() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  shared_->closing = true;
  shared_->changed.notify_all();
  const bool done =
      shared_->changed.wait_for(lock, shared_->sink.patience, [&] { return shared_->done; });
  const uint64_t dropped = shared_->dropped, waiting = shared_->queue.size();
  lock.unlock();
  if (done) {
    thread_.join();
  } else {
    spdlog::warn(
        "{} does not end: goes on without it, {} lines are lost", shared_->sink.name, waiting);
    thread_.detach();
  }
  if (dropped > 0)
    spdlog::warn("{} was too slow or failed for {} lines", shared_->sink.name, dropped);
}

bool sink_thread::offer(std::shared_ptr<const metrics_line> line) {
  const std::lock_guard guard(shared_->mutex);
  if (shared_->closing || shared_->queue.size() >= queue_limit) {
    ++shared_->dropped;
    return false;
  }
  shared_->queue.push_back(std::move(line));
  shared_->changed.notify_one();
  return true;
}

sink_view sink_thread::view() const {
  const std::lock_guard guard(shared_->mutex);
  return {shared_->sink.name, shared_->written, shared_->dropped};
}

}  // namespace dflash

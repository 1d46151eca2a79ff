// Where a lane of another host is, and whether that host answers: written by the lane's thread,
// read by whoever looks.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace dflash {

class lane_place {
public:
  enum class condition : uint8_t { apart, connected, lost };

  explicit lane_place(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }  // "nodeB/cpu:0"
  void set(condition now) { now_.store(now, std::memory_order_relaxed); }
  condition now() const { return now_.load(std::memory_order_relaxed); }
  std::string text() const {
    static constexpr const char* says[] = {", not connected", ", answers", ", DOES NOT ANSWER"};
    return name_ + says[static_cast<size_t>(now())];
  }

private:
  const std::string name_;
  std::atomic<condition> now_{condition::apart};
};

}  // namespace dflash

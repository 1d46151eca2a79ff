// What the page and Prometheus show: the counters of all mailboxes, the last line of metrics, the
// curves. Asks no actor. Thread safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/runtime/mailbox_stats.hpp"
#include "observe/run_view.hpp"

namespace dflash {

struct watch_options {
  std::string run;
  uint64_t first_step = 0;
  uint64_t total_steps = 0;
  std::function<std::vector<log_line>()> warnings = {};
};

class run_watch {
public:
  explicit run_watch(watch_options options);

  // Before anything is asked; again never.
  void observe(std::shared_ptr<const mailbox_registry> registry,
               std::function<std::vector<sink_view>()> sinks);
  void note(const metrics_line& line);

  run_view view();

private:
  struct seen {  // of one actor, some seconds ago
    int64_t busy_ns = 0;
    uint64_t handled = 0;
  };
  void look(int64_t now);

  watch_options options_;
  std::mutex mutex_;
  std::shared_ptr<const mailbox_registry> registry_;
  std::function<std::vector<sink_view>()> sinks_;
  int64_t born_ns_ = now_ns();
  uint64_t step_ = 0;
  std::vector<scalar> latest_;
  std::vector<curve_point> curve_;
  uint64_t every_ = 1;  // steps between two points of the curve
  // Rates are over the time since the older of two looks, some seconds in all.
  std::array<std::map<std::string, seen>, 2> looks_;  // older, newer
  std::array<int64_t, 2> looked_ns_{};
};

// "target_forward 0" is the first of its kind; "loader" the only one.
struct actor_name {
  std::string kind;
  uint32_t index = 0;
};
actor_name split_name(const std::string& name);

// The node that this process is: "host:pid".
std::string node_name();

}  // namespace dflash

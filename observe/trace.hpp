// A trace of what actors did, in the JSON form that Perfetto and chrome://tracing read: a track per
// actor, slices that nest by their times, arrows that follow a batch, counters. Plain; one owner.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

class trace {
public:
  /// Tracks are listed in order of their first use.
  void slice(const std::string& track,
             const std::string& name,
             std::string_view category,  // "stage", "wait"
             std::int64_t begin_ns,
             std::int64_t end_ns,
             std::int64_t k = -1);  // batch; -1: of none

  enum class arrow { begins, goes_on, ends };
  /// At a moment within a slice of the track; times of one batch must rise.
  void flow(arrow what, std::uint64_t k, const std::string& track, std::int64_t at_ns);

  void counter(const std::string& name, std::int64_t at_ns, double value);

  bool empty() const { return events_.empty(); }
  std::size_t size() const { return events_.size(); }

  /// The whole file; times count from the first event.
  std::string json() const;

private:
  struct event {
    std::int64_t at_ns = 0;
    std::string text;  // members of the object but its time
  };
  int track_of(const std::string& name);

  std::map<std::string, int> tracks_;  // thread ids, from 1
  std::vector<std::string> names_;     // [track - 1]
  std::vector<event> events_;
};

}  // namespace dflash

// Deaths of actors on purpose, in tests and in rehearsals of a run: where depends on a seed alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/runtime/fault_points.hpp"

namespace dflash {

// Throws std::runtime_error at a share of the fault points of some actors, at most `most` times in
// each, and delays others by up to a millisecond. Where depends on the seed and on how often an
// actor has passed a point before. Called by several threads at once.
class seeded_faults {
public:
  // `actors`: beginnings of names, e.g. "target_forward".
  seeded_faults(uint64_t seed, std::vector<std::string> actors, double share, uint64_t most = 6);

  void operator()(const std::string& actor, std::string_view point);

  uint64_t thrown() const;
  std::set<std::string> points() const;  // "metrics:written", ...: where something was thrown

private:
  void die(const std::string& actor, std::string_view point);

  uint64_t seed_;
  std::vector<std::string> actors_;
  double share_;
  uint64_t most_;
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> passed_, thrown_;
  std::set<std::string> points_;
};

// Of text like "seed=1 share=0.02 most=5 actors=drafter_train,postprocess"; all but `seed` may be
// left out. Throws error that names `where`.
fault_points::function parse_seeded_faults(std::string_view text, const std::string& where);

}  // namespace dflash

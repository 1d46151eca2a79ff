// Parts of gradients that drafters send each other, at one of them: those of the open step, and
// those of the next one that come early. Plain struct.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "messages/messages.hpp"

namespace dflash {

class step_exchange {
public:
  step_exchange(uint32_t drafters, uint32_t attempt) : drafters_(drafters), attempt_(attempt) {}

  // Parts of an older attempt are dropped: their sender may have died, and its memory may be used
  // again.
  void arrived(const step_part& part);
  // Of all ranks, in their order; nothing while one is missing.
  std::vector<step_part> complete(uint64_t step) const;
  void done(uint64_t step) { parts_.erase(step); }
  // What is here is void.
  void begin(uint32_t attempt);
  uint32_t attempt() const { return attempt_; }

private:
  uint32_t drafters_;
  uint32_t attempt_;
  std::map<uint64_t, std::vector<std::optional<step_part>>> parts_;  // by step, then [rank]
};

}  // namespace dflash

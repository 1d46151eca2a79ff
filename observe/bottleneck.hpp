// Which stage of the pipeline holds the others up, and by how much.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace dflash {

struct stage_load {
  std::string name;         // "target_forward"
  std::uint32_t lanes = 0;  // that take part
  double busy = 0;          // share of the time of all its lanes in which they computed
};

struct bottleneck {
  std::string name;
  double busy = 0;
  std::string next;  // the busiest of the others; empty: there is none
  double headroom =
      0;  // what the next one could do, as a multiple of what this one does; 0: unknown
};

/// The busiest stage. All stages pass the same batches in the same time, so a stage that is busy
/// for the share u of it could pass 1 / u as many. Unset: nothing has computed.
std::optional<bottleneck> find_bottleneck(std::span<const stage_load> stages);

/// "target_forward holds the others up: busy 97 %, drafter_train could do 1.9 x as much"
std::string bottleneck_text(const bottleneck& b);

}  // namespace dflash

// What the metrics actor hands to its sinks: the line of metrics.jsonl of one step. Plain.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

struct metrics_line {
  std::uint64_t step = 0;  // 1 = the first
  double unix_time = 0;    // seconds
  std::string json;        // as in metrics.jsonl, without the line's end
  std::string progress;    // for the console; empty: nothing new to show
};

struct scalar {
  std::string name;  // "loss", "acc_at/3" (element of a list, from 1), "time/tokens_per_s"
  double value = 0;
};

/// All numbers of a line but step and k, in its order; true is 1. What is null, or no number, is
/// left out. Empty if the text is no object.
std::vector<scalar> scalars_of(std::string_view json);

}  // namespace dflash

// How much memory a run takes before it starts: by part, on this host and on each GPU of its
// layout; and the smallest change that would make it fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "model/compute_dtype.hpp"
#include "model/drafter_config.hpp"
#include "model/memory.hpp"
#include "model/target_config.hpp"

namespace dflash {

/// What the memory of a run depends on; its configuration comes with every call.
struct memory_shapes {
  target_config target;
  drafter_config drafter;
  compute_dtype dtype = compute_dtype::fp32;
  uint64_t target_file_bytes = 0;  // mapped while it is loaded
  uint64_t shard_bytes = 0;        // of data.train, mapped
  int64_t rows = 1;                // of an epoch
  evaluation_shapes evaluation;    // of eval.every
};

/// Looks at the sizes of the files in target.path and data.train.
memory_shapes memory_shapes_of(const run_config& config,
                               const target_config& target,
                               const drafter_config& drafter,
                               compute_dtype dtype,
                               int64_t rows);

struct memory_part {
  std::string name;
  uint64_t bytes = 0;
  std::string note;  // how it comes about
};

struct memory_place {
  std::string name;  // "host", "cuda:0"
  std::vector<memory_part> parts;
  uint64_t limit_bytes = 0;  // 0: not known

  uint64_t total() const;
  bool fits() const { return limit_bytes == 0 || total() <= limit_bytes; }
};

/// The host first, then the GPUs of the layout. Throws error if layout.max_in_flight is below what
/// works.
std::vector<memory_place> memory_plan(const run_config& config, const memory_shapes& shapes);

/// The change of one key, or the least number of lanes, that makes all of it fit; empty: none of
/// these does.
std::string smallest_change(const run_config& config, const memory_shapes& shapes);

/// Throws error (exit 2) with the smallest change if a place of the plan does not fit.
void check_memory(const run_config& config, const memory_shapes& shapes);

std::string memory_table(const std::vector<memory_place>& places);

/// What this process may use: the machine's memory or, if less, the limit of its control group.
uint64_t host_memory_bytes();
/// The most that this process has had so far; 0 if the system does not say.
uint64_t peak_resident_bytes();

}  // namespace dflash

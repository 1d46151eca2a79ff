// Which checkpoints stay, and the links that name two of them: `latest` and `best`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace dflash {

struct checkpoint_retention {
  int64_t keep = 2;                  // newest good ones; >= 1
  uint64_t keep_every = 0;           // those whose steps are a multiple of it; 0: none
  std::vector<uint64_t> kept_steps;  // these too
};

// Removes good checkpoints that nothing keeps; what `best` points to is kept. Damaged ones do not
// count and stay; what a cut off save or removal left goes. Only by the process that writes
// checkpoints there. Blocks. Throws where the disk refuses.
void prune_checkpoints(const std::filesystem::path& checkpoints, const checkpoint_retention& rule);

// A link to step-N, replaced in one go. Throws where the disk refuses.
void point_link(const std::filesystem::path& checkpoints, const char* name, uint64_t steps);

// What a link of that name points to, if it is a checkpoint's name.
std::optional<uint64_t> linked_checkpoint(const std::filesystem::path& checkpoints,
                                          const char* name);

}  // namespace dflash

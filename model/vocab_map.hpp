// A draft vocabulary from files that others made (draft.vocab_map): d2t and t2d as .npy, as tensors
// of a safetensors file, or in the folder of a checkpoint, of an EAGLE drafter too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace dflash {

// The rising target ids [Vd] of the draft tokens. `wanted` > 0 picks among several pairs of a
// folder, which speculators names d2t-Vd.npy and t2d-Vd.npy; the caller checks the count. Throws
// dflash::error naming the file for anything but a d2t [Vd] and a t2d [vocab] that agree.
std::vector<int32_t> read_vocab_map(const std::filesystem::path& path,
                                    int64_t vocab,
                                    int64_t wanted);

}  // namespace dflash

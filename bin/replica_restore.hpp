// How a drafter of a training run goes back to where the run can go on from, when no replica is
// left that has its present state.
#pragma once

#include <filesystem>

#include "actors/drafter_work.hpp"
#include "bin/training_setup.hpp"

namespace dflash {

/// Loads the newest good checkpoint, or makes the run's first weights again if there is none yet.
/// Throws std::runtime_error where the run went on from a checkpoint and none is good any more.
checkpoint_restorer restorer(const training_setup& setup, const std::filesystem::path& checkpoints);

}  // namespace dflash

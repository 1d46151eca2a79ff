// What the checkpointer writes for a run of `dflash train`.
#pragma once

#include <filesystem>

#include "actors/drafter_work.hpp"
#include "bin/training_setup.hpp"

namespace dflash {

/// Writes RUN/checkpoints/step-N, then removes what the configuration does not keep; a removal that
/// fails is logged, the checkpoint is good.
checkpoint_writer checkpoint_saver(const training_setup& setup,
                                   const std::filesystem::path& checkpoints);

}  // namespace dflash

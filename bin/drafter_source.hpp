// Where a drafter may be given on the command line: a drafter folder, a checkpoint or a whole run.
#pragma once

#include <filesystem>

namespace dflash {

/// The drafter folder (config.json and model.safetensors) that `given` names: itself, a checkpoint,
/// or a run folder, whose newest good checkpoint is taken. Throws error if there is none.
std::filesystem::path find_drafter_folder(const std::filesystem::path& given);

}  // namespace dflash

#include "bin/drafter_source.hpp"

#include <spdlog/spdlog.h>

#include "config/error.hpp"
#include "model/checkpoint.hpp"

namespace dflash {

namespace fs = std::filesystem;

std::filesystem::path find_drafter_folder(const std::filesystem::path& given) {
  if (!fs::exists(given))
    throw error("there is no such drafter",
                given.string(),
                "give a run, checkpoint or drafter folder, or 'lookup' for prompt lookup");
  if (!fs::is_directory(given))
    throw error("a drafter is a folder, and this is a file", given.string());
  if (fs::exists(given / "config.json") && (fs::exists(given / "model.safetensors") ||
                                            fs::exists(given / "model.safetensors.index.json"))) {
    // A checkpoint has a list of checksums beside the drafter.
    const auto why = fs::exists(given / "checksums") ? check_checkpoint(given, true) : "";
    if (!why.empty())
      throw error("the checkpoint is damaged: " + why, given.string(), "take the one before it");
    return given;
  }
  if (fs::is_directory(given / "checkpoints")) {
    const auto found = find_checkpoint(given / "checkpoints");
    for (const auto& refused : found.refusals)
      spdlog::warn("{}: {}: passed over", refused.name, refused.why);
    if (found.newest) return *found.newest;
    throw error("the run has no good checkpoint",
                (given / "checkpoints").string(),
                "let it train up to its first checkpoint");
  }
  throw error("the folder holds no drafter (config.json and model.safetensors) and no checkpoints",
              given.string(),
              "give a run, checkpoint or drafter folder");
}

}  // namespace dflash

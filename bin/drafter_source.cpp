#include "bin/drafter_source.hpp"

#include <system_error>

#include "config/error.hpp"

namespace dflash {

namespace fs = std::filesystem;

std::filesystem::path find_drafter_folder(const std::filesystem::path& given) {
  if (!fs::exists(given))
    throw error("there is no such drafter",
                given.string(),
                "give a run, checkpoint or z-lab folder, or 'lookup' for prompt lookup");
  if (!fs::is_directory(given))
    throw error("a drafter is a folder, and this is a file", given.string());
  if (fs::exists(given / "config.json") && fs::exists(given / "model.safetensors")) return given;
  const auto latest = given / "checkpoints" / "latest";
  if (fs::is_directory(latest)) return fs::canonical(latest);
  throw error("the folder holds no drafter (config.json and model.safetensors) and no checkpoints",
              given.string(),
              "give a run, checkpoint or z-lab folder");
}

}  // namespace dflash

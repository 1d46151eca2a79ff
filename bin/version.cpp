#include "bin/version.hpp"

#include <torch/headeronly/version.h>

#include <caf/config.hpp>

#include "git_commit.hpp"  // made in the build folder by cmake/git_commit.cmake

namespace dflash {

std::string program_version() {
  return DFLASH_VERSION;
}

std::string git_commit() {
  return DFLASH_GIT_COMMIT;
}

std::string torch_version() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
         std::to_string(TORCH_VERSION_PATCH);
}

std::string caf_version() {
  return std::to_string(CAF_VERSION / 10000) + "." + std::to_string(CAF_VERSION / 100 % 100) + "." +
         std::to_string(CAF_VERSION % 100);
}

std::string version_text() {
  return "dflash " + program_version() + "\ngit commit " + git_commit() + "\nLibTorch " +
         torch_version() + "\nCAF " + caf_version();
}

}  // namespace dflash

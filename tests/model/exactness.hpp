// One line of the table of exactness: the largest error that a test found, and what it allows.
#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace dflash::test {

// Appends {"what", "against", "largest", "tolerance"} to the file that the environment variable
// DFLASH_EXACTNESS names; does nothing without it.
inline void exactness_row(std::string_view what,
                          std::string_view against,
                          double largest,
                          double tolerance) {
  const char* path = std::getenv("DFLASH_EXACTNESS");
  if (path == nullptr || *path == '\0') return;
  const nlohmann::ordered_json row = {
      {"what", what}, {"against", against}, {"largest", largest}, {"tolerance", tolerance}};
  std::ofstream(path, std::ios::app) << row.dump() + "\n";
}

}  // namespace dflash::test

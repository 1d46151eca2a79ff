// What this program was built from; stored in run folders and printed by --version.
#pragma once

#include <string>

namespace dflash {

std::string program_version();  // "0.1.0"
std::string git_commit();       // 12 digits, "+" if the tree had changes, or "unknown"
std::string torch_version();    // "2.11.0"
std::string caf_version();      // "0.17.6"

/// All of them, one a line, as --version prints them.
std::string version_text();

}  // namespace dflash

// The names of all configuration keys, for who lists a configuration.
#pragma once

#include <string>
#include <vector>

namespace dflash {

/// "section.key", in the order of the file.
std::vector<std::string> config_keys();

}  // namespace dflash

// Tensors of a family that may lie in a folder without being read, by pattern: '*' matches any run
// of characters. Each names the reason that the log prints.
#pragma once

#include <string_view>

namespace dflash {

struct spare_rule {
  std::string_view pattern;
  std::string_view reason;
};

}  // namespace dflash

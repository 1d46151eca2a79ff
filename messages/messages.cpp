#include "messages/messages.hpp"

#include <array>

namespace dflash {

const char* stage_name(stage which) {
  static constexpr std::array<const char*, static_cast<size_t>(stage::count)> names = {
      "load batch",
      "read kept states",
      "target forward",
      "postprocess",
      "keep states",
      "drafter forward+backward",
      "reduce",
      "update",
      "save",
      "snapshot",
      "evaluate",
  };
  return names[static_cast<size_t>(which)];
}

const char* skip_cause_name(skip_cause which) {
  static constexpr std::array<const char*, 4> names = {
      "", "nothing supervised", "not finite", "loss spike"};
  return names[static_cast<size_t>(which)];
}

}  // namespace dflash

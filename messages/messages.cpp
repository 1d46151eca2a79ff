#include "messages/messages.hpp"

#include <array>

namespace dflash {

const char* skip_cause_name(skip_cause which) {
  static constexpr std::array<const char*, 4> names = {
      "", "nothing supervised", "not finite", "loss spike"};
  return names[static_cast<size_t>(which)];
}

}  // namespace dflash

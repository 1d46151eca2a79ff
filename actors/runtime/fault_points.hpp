// Named places at which a test lets actors die. Off, which is one branch a place, unless a test
// gives a function that throws where it wants to. CAF cannot interrupt a handler, so this is how an
// actor dies in the middle of its work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dflash {

class fault_points {
public:
  using function = std::function<void(const std::string& actor, std::string_view point)>;

  fault_points() = default;  // off
  explicit fault_points(function f) {
    if (f) function_ = std::make_shared<const function>(std::move(f));
  }
  // Called in the actor's thread: several at once.
  void pass(const std::string& actor, std::string_view point) const {
    if (function_) [[unlikely]]
      (*function_)(actor, point);
  }

private:
  std::shared_ptr<const function> function_;
};

}  // namespace dflash

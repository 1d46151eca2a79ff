#include "config/error.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

namespace dflash {

TEST_CASE("an error is one text and keeps its parts") {
  const error e("taps must rise", "my.toml:3:1", "sort them");
  CHECK(std::string(e.what()) == "taps must rise (my.toml:3:1)\nhint: sort them");
  CHECK(e.what_ == "taps must rise");
  CHECK(e.where == "my.toml:3:1");
  CHECK(e.hint == "sort them");
  CHECK(std::string(error("bare").what()) == "bare");
}

TEST_CASE("control characters of a hostile name are printed, not acted on") {
  using namespace std::string_literals;
  const error e("no tensor \"a\0b\x1b[2J\""s, "m\r.toml:1", "two\n\tlines\x7f");
  CHECK(e.what() == "no tensor \"a\\x00b\\x1b[2J\" (m\\x0d.toml:1)\nhint: two\n\tlines\\x7f"s);
}

TEST_CASE("check texts list their values") {
  CHECK(detail::check_text("no room") == "no room");
  CHECK(detail::check_text("no room", 3, "of", 2.5) == "no room: 3, of, 2.5");
}

TEST_CASE("narrow keeps values that fit") {
  CHECK(narrow<std::int32_t>(std::int64_t{-7}) == -7);
  CHECK(narrow<std::uint8_t>(255) == 255);
  CHECK(narrow<std::int64_t>(std::size_t{5}) == 5);
  CHECK(narrow<int>(3.0) == 3);
  CHECK(narrow<std::int64_t>(-9223372036854775808.0) == std::numeric_limits<std::int64_t>::min());
  CHECK(narrow<float>(0.5) == 0.5f);
}

}  // namespace dflash

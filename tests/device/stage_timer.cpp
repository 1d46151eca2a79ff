#include "device/stage_timer.hpp"

#include <catch2/catch.hpp>
#include <string>

namespace dflash {

TEST_CASE("marks are the time since the one before, within the scope that is open") {
  stage_timer t;
  t.turn_on();
  {
    const auto outer = t.within("batch");
    t.mark("a");
    {
      const auto inner = t.within("layer", 3);
      t.mark("b", 5);
    }
    t.mark("c");
  }
  const auto spans = t.take();
  REQUIRE(spans.size() == 5);
  const auto is = [&](size_t i, const char* name, const char* inside, const char* outer) {
    const auto text = [](const char* s) { return std::string(s == nullptr ? "-" : s); };
    CHECK(spans[i].name == std::string(name));
    CHECK(text(spans[i].inside) == inside);
    CHECK(text(spans[i].outer) == outer);
    CHECK(spans[i].begin_ns <= spans[i].end_ns);
  };
  is(0, "a", "batch", "-");
  is(1, "b", "layer", "batch");
  is(2, "layer", "batch", "-");
  is(3, "c", "batch", "-");
  is(4, "batch", "-", "-");
  CHECK(spans[1].group == 5);
  CHECK(spans[2].group == 3);
  CHECK(spans[2].whole);
  // No gaps, nothing twice.
  CHECK(spans[0].begin_ns == spans[4].begin_ns);
  CHECK(spans[2].begin_ns == spans[1].begin_ns);
  CHECK(spans[1].end_ns <= spans[2].end_ns);
  CHECK(spans[3].begin_ns == spans[2].end_ns);
  CHECK(spans[3].end_ns <= spans[4].end_ns);
  CHECK(t.take().empty());
  const auto seconds = mark_seconds(spans);
  CHECK(seconds.size() == 3);
  CHECK_FALSE(seconds.contains("batch"));
}

TEST_CASE("a timer that is off keeps nothing") {
  stage_timer t;
  const auto scope = t.within("x");
  t.reset();
  t.mark("y");
  CHECK(t.take().empty());
}

}  // namespace dflash

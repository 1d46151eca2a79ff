#include "device/stage_timer.hpp"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dflash {

namespace {

// A device that is told how far it has come.
struct slow_device {
  int64_t recorded = 0, read = 0, passed = 0;
  std::vector<std::string> ranges;

  // Moment i was at 100 i ns.
  static device_clock clock(const std::shared_ptr<slow_device>& d) {
    const auto note = [d](const char* sign) {
      return [d, sign](const char* name, int32_t group) {
        d->ranges.push_back(sign + std::string(name) +
                            (group < 0 ? std::string() : " " + std::to_string(group)));
      };
    };
    return {.record = [d] { ++d->recorded; },
            .read = [d]() -> std::optional<int64_t> {
              if (d->read >= d->passed) return std::nullopt;
              return 100 * d->read++;
            },
            .begin_range = note("+"),
            .end_range = [d] { d->ranges.emplace_back("-"); },
            .mark = note("")};
  }
};

}  // namespace

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

TEST_CASE("stages of a device are taken once it has come to their ends, with its times") {
  const auto device = std::make_shared<slow_device>();
  stage_timer t;
  t.use(slow_device::clock(device));
  t.turn_on();
  {
    const auto batch = t.within("batch");  // moment 0
    t.mark("a");                           // 1
    {
      const auto layer = t.within("layer", 3);  // 2
      t.mark("b", 5);                           // 3
    }                                           // 4
    t.mark("c");                                // 5
    CHECK(t.take().empty());                    // the device has not begun
    device->passed = 2;
    const auto first = t.take();
    REQUIRE(first.size() == 1);
    CHECK(first[0].name == std::string("a"));
    CHECK(first[0].begin_ns == 0);
    CHECK(first[0].end_ns == 100);
    device->passed = 5;
    CHECK(t.take().size() == 2);  // b, layer
  }                               // 6
  CHECK(t.take().empty());
  device->passed = device->recorded;
  const auto rest = t.take();
  REQUIRE(rest.size() == 2);
  CHECK(rest[0].name == std::string("c"));
  CHECK(rest[0].begin_ns == 400);
  CHECK(rest[0].end_ns == 500);
  CHECK(rest[1].name == std::string("batch"));
  CHECK(rest[1].whole);
  CHECK(rest[1].begin_ns == 0);
  CHECK(rest[1].end_ns == 600);
  CHECK((device->ranges ==
         std::vector<std::string>{"+batch", "a", "+layer 3", "b 5", "-", "c", "-"}));
  // On and on: nothing is lost, nothing piles up.
  for (int i = 0; i < 100; ++i) {
    t.mark("d");
    device->passed = device->recorded - 1;  // always one behind
    CHECK(t.take().size() == (i == 0 ? 0U : 1U));
  }
}

TEST_CASE("a device is not asked while a timer is off") {
  const auto device = std::make_shared<slow_device>();
  stage_timer t;
  t.use(slow_device::clock(device));
  {
    const auto scope = t.within("x");
    t.reset();
    t.mark("y");
  }
  CHECK(device->recorded == 0);
  CHECK(device->ranges.empty());
  CHECK(t.take().empty());
}

TEST_CASE("a timer that is off keeps nothing") {
  stage_timer t;
  const auto scope = t.within("x");
  t.reset();
  t.mark("y");
  CHECK(t.take().empty());
}

}  // namespace dflash

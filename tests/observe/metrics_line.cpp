#include "observe/metrics_line.hpp"

#include <catch2/catch.hpp>

#include "observe/bottleneck.hpp"

namespace dflash {

TEST_CASE("all numbers of a line of metrics become scalars, in its order") {
  const auto all =
      scalars_of(R"({"step":3,"k":12,"epoch":0,"loss":2.5,"acc_at":[0.5,null,0.25],"skipped":true,)"
                 R"("time":{"waits":{"targets":{"slot":0.1}}},"name":"x"})");
  REQUIRE(all.size() == 6);
  CHECK(all[0].name == "epoch");
  CHECK(all[1].name == "loss");
  CHECK(all[1].value == 2.5);
  CHECK(all[2].name == "acc_at/1");
  CHECK(all[3].name == "acc_at/3");
  CHECK(all[3].value == 0.25);
  CHECK(all[4].value == 1.0);
  CHECK(all[5].name == "time/waits/targets/slot");
  CHECK(scalars_of("{\"loss\":").empty());
  CHECK(scalars_of("[1]").empty());
}

TEST_CASE("the busiest stage is the bottleneck, and the next one's headroom is the ratio") {
  const stage_load loads[] = {
      {"loader", 1, 0.05}, {"target_forward", 5, 0.96}, {"drafter", 3, 0.5}};
  const auto b = find_bottleneck(loads);
  REQUIRE(b);
  CHECK(b->name == "target_forward");
  CHECK(b->next == "drafter");
  CHECK(b->headroom == Approx(1.92));
  CHECK(bottleneck_text(*b) ==
        "target_forward holds the others up: busy 96 %, drafter could do 1.9 x as much");
  const stage_load even[] = {{"a", 1, 0.9}, {"b", 1, 0.89}, {"retired", 0, 1.0}};
  CHECK(bottleneck_text(*find_bottleneck(even)) == "a holds the others up: busy 90 %, b as much");
  const stage_load calm[] = {{"a", 1, 0.2}, {"b", 1, 0.001}};
  CHECK(bottleneck_text(*find_bottleneck(calm)) ==
        "nobody is busy all the time; most so is a: busy 20 %, b does next to nothing");
  CHECK_FALSE(find_bottleneck({}));
  const stage_load nothing[] = {{"a", 1, 0.0}};
  CHECK_FALSE(find_bottleneck(nothing));
}

}  // namespace dflash

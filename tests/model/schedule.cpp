#include "model/schedule.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <tuple>

#include "config/error.hpp"
#include "exactness.hpp"
#include "optimizer_reference.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

optim_section section(const std::string& schedule, int64_t warmup, double low) {
  optim_section o;
  o.lr = 1.0;
  o.schedule = schedule;
  o.warmup = {.share = 0, .steps = warmup};
  o.min_lr_share = low;
  return o;
}

}  // namespace

TEST_CASE(
    "cosine with warm-up gives the rates of the edge cases: no warm-up, only warm-up, one step") {
  const std::vector<std::tuple<uint64_t, int64_t, std::vector<double>>> cases = {
      {10,
       0,
       {.9779754, .9140576, .8145034, .6890576, .55, .4109424, .2854966, .1859424, .1220246, .1}},
      {10, 2, {.5, 1.0, .9657458, .8681981, .7222075, .55, .3777925, .2318019, .1342542, .1}},
      {10, 10, {.1, .2, .3, .4, .5, .6, .7, .8, .9, 1.0}},
      {10,
       9,
       {.1111111, .2222222, .3333333, .4444444, .5555556, .6666667, .7777778, .8888889, 1.0, .1}},
      {1, 0, {.1}},
      {1, 1, {1.0}},
      {2, 1, {1.0, .1}}};
  for (const auto& [total, warmup, rates] : cases)
    for (uint64_t s = 0; s < total; ++s) {
      CAPTURE(total, warmup, s);
      CHECK(learning_rate(section("cosine", warmup, 0.1), s, total) ==
            Approx(rates[s]).epsilon(1e-6));
    }
}

TEST_CASE("each schedule has the rates of transformers' one step later", "[exact]") {
  // theirs counts from a rate of 0 that is never used; ours starts above it
  const reference r;
  const std::tuple<std::string, std::string, double> schedules[] = {{"cosine", "cosine", 0.1},
                                                                    {"cosine0", "cosine", 0.0},
                                                                    {"linear", "linear", 0.0},
                                                                    {"constant", "constant", 0.1},
                                                                    {"wsd", "wsd", 0.0}};
  double worst = 0;
  for (const auto& [key, schedule, low] : schedules) {
    optim_section o = section(schedule, 4, low);
    o.decay = {.share = 0, .steps = 6};
    const at::Tensor want = r["schedule." + key];
    for (uint64_t s = 0; s < 20; ++s) {
      CAPTURE(key, s);
      const double gap =
          std::abs(schedule_factor(o, s, 20) - want[static_cast<int64_t>(s)].item().toDouble());
      CHECK(gap < 1e-12);
      worst = std::max(worst, gap);
    }
  }
  exactness_row("learning rate by step", "transformers' schedules", worst, 1e-12);
}

TEST_CASE("linear falls in a straight line to its least rate") {
  const optim_section o = section("linear", 0, 0.5);
  CHECK(schedule_factor(o, 0, 10) == Approx(0.95));
  CHECK(schedule_factor(o, 4, 10) == Approx(0.75));
  CHECK(schedule_factor(o, 9, 10) == Approx(0.5));
}

TEST_CASE("every schedule stays finite, above zero and at most the peak") {
  for (const std::string name : {"cosine", "linear", "wsd", "constant"})
    for (const uint64_t total : {1, 2, 3, 10, 1000})
      for (const int64_t warmup : {int64_t{0}, int64_t{1}, static_cast<int64_t>(total)}) {
        optim_section o = section(name, warmup, 0.1);
        if (name == "wsd" && warmup > 0) o.decay = {.share = 0, .steps = 0};
        for (uint64_t s = 0; s < total + 2; ++s) {
          const double rate = learning_rate(o, s, total);
          CAPTURE(name, total, warmup, s, rate);
          CHECK(std::isfinite(rate));
          CHECK(rate > 0);
          CHECK(rate <= 1.0);
        }
      }
}

TEST_CASE("wsd holds the peak and falls over its last part") {
  optim_section o = section("wsd", 10, 0.0);
  o.decay = {.share = 0.2, .steps = -1};
  CHECK(learning_rate(o, 9, 100) == 1.0);
  CHECK(learning_rate(o, 79, 100) == 1.0);
  CHECK(learning_rate(o, 80, 100) < 1.0);
  CHECK(learning_rate(o, 89, 100) == Approx(0.5));
  CHECK(learning_rate(o, 99, 100) == Approx(0.0).margin(1e-12));
}

TEST_CASE("warm-up longer than the run is refused with both numbers") {
  try {
    learning_rate(section("cosine", 11, 0.1), 0, 10);
    FAIL("accepted");
  } catch (const error& problem) {
    const std::string text = problem.what();
    CHECK(text.find("11") != std::string::npos);
    CHECK(text.find("10") != std::string::npos);
  }
}

TEST_CASE("a run with another number of steps follows its own curve from the step number") {
  const optim_section o = section("cosine", 2, 0.1);
  CHECK(learning_rate(o, 6, 20) > learning_rate(o, 6, 10));
  CHECK(learning_rate(o, 6, 20) == learning_rate(o, 6, 20));
}

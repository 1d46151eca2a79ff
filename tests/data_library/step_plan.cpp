#include "data/step_plan.hpp"

#include <catch2/catch.hpp>

using namespace dflash;

TEST_CASE("the last group of an epoch is a step over what there is") {
  const step_plan plan(10, 1, 1, 4, 0);
  CHECK(plan.total_steps() == 3);
  CHECK(plan.total_batches() == 10);
  CHECK(plan.step(0).first_k == 0);
  CHECK(plan.step(0).last_k == 4);
  CHECK(plan.step(2).first_k == 8);
  CHECK(plan.step(2).last_k == 10);
  const step_plan twice(10, 2, 1, 4, 0);
  CHECK(twice.total_steps() == 6);
  CHECK(twice.total_batches() == 20);
  CHECK(twice.step(3).first_k == 10);
  CHECK(twice.step(3).epoch == 1);
}

TEST_CASE("data smaller than a step is one step per epoch") {
  CHECK(step_plan(3, 1, 1, 4, 0).total_steps() == 1);
  CHECK(step_plan(3, 1, 1, 4, 0).step(0).last_k == 3);
  CHECK(step_plan(3, 1, 2, 4, 0).total_steps() == 1);
  CHECK(step_plan(1, 50, 1, 1, 0).total_steps() == 50);
}

TEST_CASE("a number of steps repeats epochs or cuts them short") {
  const step_plan longer(1, 1, 1, 1, 7);
  CHECK(longer.total_steps() == 7);
  CHECK(longer.total_batches() == 7);
  CHECK(longer.step(6).epoch == 6);
  const step_plan shorter(10, 3, 1, 4, 2);
  CHECK(shorter.total_steps() == 2);
  CHECK(shorter.total_batches() == 8);
}

TEST_CASE("steps follow each other without gap, within an epoch, and every batch has one") {
  for (int64_t rows = 1; rows <= 13; ++rows) {
    for (int64_t drafters = 1; drafters <= 3; ++drafters) {
      for (int64_t accumulation = 1; accumulation <= 3; ++accumulation) {
        const step_plan plan(rows, 3, drafters, accumulation, 0);
        const auto group = static_cast<uint64_t>(drafters * accumulation);
        uint64_t k = 0;
        for (uint64_t s = 0; s < plan.total_steps(); ++s) {
          const step_range r = plan.step(s);
          CHECK(r.step == s);
          CHECK(r.first_k == k);
          CHECK(r.last_k > r.first_k);
          CHECK(r.last_k - r.first_k <= group);
          CHECK(r.epoch == r.first_k / static_cast<uint64_t>(rows));
          CHECK(r.epoch == (r.last_k - 1) / static_cast<uint64_t>(rows));
          for (; k < r.last_k; ++k) CHECK(plan.step_of(k) == s);
        }
        CHECK(k == static_cast<uint64_t>(3 * rows));
        CHECK(plan.total_batches() == k);
      }
    }
  }
}

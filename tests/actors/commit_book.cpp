// Which steps go, which count, which are skipped; and a run that goes back. Without actors.
#include "actors/commit_book.hpp"

#include <ATen/core/Tensor.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "config/error.hpp"
#include "model/loss.hpp"

using namespace dflash;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::vector<batch_report> loss_of(uint64_t k, double loss, double weight = 1) {
  step_sums sums;
  sums.loss = loss;
  sums.weight_sum = weight;
  sums.finite = std::isfinite(loss);
  batch_report report;
  report.k = k;
  report.sums = std::make_shared<const step_sums>(std::move(sums));
  return {report};
}

step_committed update(uint64_t step, uint32_t rank, double norm = 1, bool skipped = false) {
  return {step, rank, norm, 0.5, skipped ? 0.0 : 0.1, skipped};
}

// One drafter, one batch a step.
struct single {
  explicit single(commit_options options) : book(options) {}
  explicit single(double skip_spikes = 0, uint32_t most = 10)
      : book({.plan = step_plan(1000, 1, 1, 1, 0),
              .skip_spikes = skip_spikes,
              .max_skips_in_a_row = most}) {}

  step_done run(double loss, double norm = 1) {
    const uint64_t s = book.steps();
    book.reduced({s, 0, book.attempt(), loss_of(s, loss)});
    const step_go go = book.go();
    const auto done = book.committed(update(s, 0, norm, go.skip || !std::isfinite(norm)));
    REQUIRE(done);
    return *done;
  }
  commit_book book;
};

commit_book two_drafters() {
  return commit_book({.plan = step_plan(10, 1, 2, 2, 0), .drafters = 2});
}

}  // namespace

TEST_CASE("commits: go when all have reduced, done when all have updated", "[guarantees]") {
  auto book = two_drafters();
  book.reduced({0, 1, 0, {}});
  CHECK_FALSE(book.is_ready());
  book.reduced({0, 0, 0, {}});
  CHECK(book.is_ready());
  CHECK_FALSE(book.go().skip);
  CHECK_FALSE(book.is_ready());
  CHECK_FALSE(book.committed(update(0, 0)));
  const auto done = book.committed(update(0, 1));
  REQUIRE(done);
  CHECK(done->end_k == 4);
  CHECK(book.steps() == 1);
}

TEST_CASE("commits: replicas that disagree end the run") {
  auto book = two_drafters();
  book.reduced({0, 0, 0, {}});
  book.reduced({0, 1, 0, {}});
  book.go();
  book.committed(update(0, 0));
  CHECK_THROWS_WITH(book.committed(update(0, 1, 1.0 + 1e-15)), Catch::Contains("disagree"));
}

TEST_CASE("commits: a death before the go makes what was reduced void", "[guarantees]") {
  auto book = two_drafters();
  book.reduced({0, 0, 0, loss_of(0, 5)});
  book.reduced({0, 1, 0, loss_of(1, 5)});
  CHECK_FALSE(book.lost(1));
  CHECK_FALSE(book.is_ready());
  const uint32_t attempt = book.begin_attempt();
  book.reduced({0, 0, 0, loss_of(0, 5)});  // sent before it heard of that
  book.back(1);
  book.reduced({0, 1, attempt, loss_of(1, 6)});
  CHECK_FALSE(book.is_ready());
  book.reduced({0, 0, attempt, loss_of(0, 5)});
  CHECK(book.is_ready());
  CHECK(book.go().attempt == attempt);
  book.committed(update(0, 0));
  const auto done = book.committed(update(0, 1));
  REQUIRE(done);
  CHECK(done->reports->size() == 2);
}

TEST_CASE("commits: after the go the step is done, whoever dies", "[guarantees]") {
  auto book = two_drafters();
  const auto gone = [&] {
    const uint64_t s = book.steps();
    for (const uint32_t rank : {0U, 1U}) book.reduced({s, rank, book.attempt(), {}});
    book.go();
  };
  SECTION("one that has not updated") {
    gone();
    CHECK_FALSE(book.lost(1));
    CHECK(book.committed(update(0, 0)));
    CHECK(book.steps() == 1);
  }
  SECTION("the last one that was waited for") {
    gone();
    CHECK_FALSE(book.committed(update(0, 0)));
    CHECK(book.lost(1));
    CHECK(book.steps() == 1);
  }
  SECTION("one that has updated: the other one still has to") {
    gone();
    CHECK_FALSE(book.committed(update(0, 0)));
    CHECK_FALSE(book.lost(0));
    CHECK(book.committed(update(0, 1)));
  }
  SECTION("both: nobody has the state") {
    gone();
    CHECK_FALSE(book.committed(update(0, 0)));
    CHECK_FALSE(book.lost(0));
    CHECK_FALSE(book.lost(1));
    CHECK(book.steps() == 0);
    book.give_up_step();
    book.rewind(0);
    CHECK_FALSE(book.is_going());
  }
}

TEST_CASE("commits: a stop ends after the open step; drops are in the record") {
  single run({.plan = step_plan(10, 1, 1, 2, 0)});
  commit_book& book = run.book;
  book.dropped(3);
  book.dropped(9);
  run.run(5);
  run.run(5, not_a_number);
  auto request = book.make_save_request();
  CHECK(request.steps == 2);
  CHECK(request.next_k == 4);
  CHECK(request.dropped == std::vector<uint64_t>{3});
  CHECK(request.skipped_steps == 1);
  CHECK(book.stop() == 6);
  CHECK_FALSE(book.finished());
  run.run(5);
  CHECK(book.finished());
  CHECK_FALSE(book.complete());
}

TEST_CASE("commits: steps that are done again are checked against what they were", "[guarantees]") {
  single run;
  for (int i = 0; i < 6; ++i) run.run(5 + i);
  run.book.lost(0);
  run.book.give_up_step();
  run.book.rewind(2);
  run.book.back(0);
  CHECK(run.book.steps() == 2);
  CHECK(run.book.next_k() == 2);
  CHECK(run.book.most_steps() == 6);
  SECTION("equal") {
    for (int i = 2; i < 6; ++i) CHECK(run.run(5 + i).again);
    CHECK_FALSE(run.run(11).again);
  }
  SECTION("another norm") {
    CHECK_THROWS_WITH(run.run(7, 1.5), Catch::Contains("gradient norm 1.5 instead of 1"));
  }
  SECTION("another loss") {
    CHECK_THROWS_WITH(run.run(7.5), Catch::Contains("loss 7.5 instead of 7"));
  }
  SECTION("before the run's beginning") {
    CHECK_THROWS_WITH(run.book.rewind(9), Catch::Contains("not its own"));
  }
}

TEST_CASE("commits: a skip is obeyed when its step is done again", "[guarantees]") {
  single run;
  run.run(5);
  CHECK(run.run(5, not_a_number).skipped_for == skip_cause::not_finite);  // a fault of one moment
  CHECK(run.run(not_a_number).skipped_for == skip_cause::not_finite);
  run.run(5);
  CHECK(run.book.skipped() == 2);
  run.book.lost(0);
  run.book.give_up_step();
  run.book.rewind(0);
  run.book.back(0);
  CHECK(run.book.skipped() == 0);
  run.run(5);
  CHECK(run.run(5).skipped);
  CHECK(run.run(5).skipped);
  CHECK_FALSE(run.run(5).skipped);
  CHECK(run.book.skipped() == 2);
}

TEST_CASE("commits: a loss that is not finite skips the step on all replicas", "[guarantees]") {
  auto book = two_drafters();
  book.reduced({0, 0, 0, loss_of(0, 5)});
  book.reduced({0, 1, 0, loss_of(1, std::numeric_limits<double>::infinity())});
  CHECK(book.go().skip);
}

TEST_CASE("commits: too many skips in a row end the run with a diagnosis", "[guarantees]") {
  single run(0, 3);
  for (int i = 0; i < 2; ++i) run.run(5, not_a_number);
  CHECK(run.book.diagnosis().empty());
  run.run(5);
  for (int i = 0; i < 2; ++i) run.run(not_a_number);
  CHECK(run.book.diagnosis().empty());
  run.run(not_a_number);
  CHECK_THAT(run.book.diagnosis(), Catch::Contains("3 steps in a row were skipped"));
}

TEST_CASE("commits: steps without anything supervised are no sign of trouble") {
  single run(0, 3);
  for (int i = 0; i < 5; ++i) {
    const uint64_t s = run.book.steps();
    run.book.reduced({s, 0, 0, loss_of(s, 0, 0)});
    CHECK_FALSE(run.book.go().skip);
    const auto done = run.book.committed(update(s, 0, 0, true));
    CHECK(done->skipped_for == skip_cause::no_weight);
  }
  CHECK(run.book.diagnosis().empty());
  CHECK(run.book.make_save_request().loss_count == 0);
}

TEST_CASE("commits: loss spikes are scored, and skipped on request", "[guarantees]") {
  const auto calm = [](single& run) {
    for (uint64_t i = 0; i < loss_statistics::least; ++i)
      CHECK_FALSE(run.run(i % 2 == 0 ? 4.9 : 5.1).has_loss_z);
  };
  SECTION("off: shown only") {
    single run;
    calm(run);
    const auto done = run.run(8);
    CHECK_FALSE(done.skipped);
    CHECK(done.loss_z == Approx(30).epsilon(1e-6));  // (8 - 5) / 0.1
  }
  SECTION("on") {
    single run(6, 2);
    calm(run);
    CHECK_FALSE(run.run(5.5).skipped);  // 5
    CHECK(run.run(8).skipped_for == skip_cause::loss_spike);
    CHECK_FALSE(run.run(5).skipped);
    run.run(20);
    run.run(30);
    CHECK_THAT(run.book.diagnosis(), Catch::Contains("optim.skip_spikes"));
  }
}

TEST_CASE("loss statistics: plain mean and variance first, then the last steps count most") {
  loss_statistics s;
  std::vector<double> values;
  for (int i = 0; i < 100; ++i) {
    values.push_back(std::sin(i));
    s.add(values.back());
  }
  double mean = 0, variance = 0;
  for (const double v : values) mean += v / 100;
  for (const double v : values) variance += (v - mean) * (v - mean) / 100;
  CHECK(s.mean == Approx(mean).epsilon(1e-12));
  CHECK(s.variance == Approx(variance).epsilon(1e-12));
  CHECK(s.score(mean + 2 * std::sqrt(variance)).value() == Approx(2).epsilon(1e-9));
  for (int i = 0; i < 2000; ++i) s.add(7);
  CHECK(s.mean == Approx(7).epsilon(1e-5));
  loss_statistics flat;
  for (int i = 0; i < 50; ++i) flat.add(3);
  CHECK_FALSE(flat.score(4));
}

// NaN and infinities in losses and gradients of one replica, and losses that jump: all replicas do
// the same about it, and a run that is resumed or goes back does it again.
#include "actors/pipeline.hpp"

#include <ATen/ops/equal.h>
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/actors/fault_fixture.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

using change_sums = std::function<void(uint64_t k, step_sums&)>;

// What one replica finds for a batch is changed.
void change(training& t, uint32_t rank, change_sums f) {
  auto& work = t.parts().drafters[rank];
  work.accumulate = [inner = work.accumulate, f = std::move(f)](
                        const drafter_input& input, bool measured, const accumulate_watch& watch) {
    step_sums sums = inner(input, measured, watch);
    f(input.tokens->k, sums);
    return sums;
  };
}

void spoil_gradient(training& t, uint32_t rank) {
  t.trainer(rank).gradient().view(-1)[7] = std::nanf("");
}

uint64_t lines_with(const std::vector<std::string>& lines, const std::string& text) {
  return static_cast<uint64_t>(std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
    return line.find(text) != std::string::npos;
  }));
}

}  // namespace

TEST_CASE("NaN in the gradient of one replica: the step is skipped on all", "[guarantees]") {
  for (const uint32_t drafters : {1U, 2U, 3U}) {
    const test::scratch_folder folder;
    training t({.drafters = drafters, .noise = 0.05}, folder.path());
    const uint32_t sick = drafters - 1;
    change(t, sick, [&, bad = 3 * drafters + sick](uint64_t k, step_sums&) {
      if (k == bad) spoil_gradient(t, sick);
    });
    const auto result = run_in_time(t);
    REQUIRE(result.outcome.status == run_status::completed);
    CHECK(result.totals.skipped_steps == 1);
    CHECK(std::isfinite(t.weights().sum().item<double>()));
    for (uint32_t i = 1; i < drafters; ++i)
      CHECK(same_bits(state_copy(t.trainer(i)), state_copy(t.trainer(0))));
    CHECK(t.trainer(0).state().updates() == 19);
    const auto lines = fixed_lines(folder.path());
    CHECK(lines_with(lines, "\"skipped\":true,\"skipped_for\":\"not finite\"") == 1);
  }
}

TEST_CASE("a loss of one replica that is not finite: the step is skipped on all", "[guarantees]") {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const test::scratch_folder folder;
    training t({.drafters = 2, .noise = 0.05}, folder.path());
    change(t, 1, [&](uint64_t k, step_sums& sums) {
      if (k != 9) return;
      sums.loss = bad;
      sums.finite = false;
    });
    const auto result = run_in_time(t);
    REQUIRE(result.outcome.status == run_status::completed);
    CHECK(result.totals.skipped_steps == 1);
    CHECK(same_bits(state_copy(t.trainer(1)), state_copy(t.trainer(0))));
    CHECK(t.trainer(0).state().updates() == 19);
  }
}

TEST_CASE("gradients that stay NaN end the run with a diagnosis", "[guarantees]") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .steps = 40}, folder.path());
  change(t, 1, [&](uint64_t k, step_sums&) {
    if (k >= 9) spoil_gradient(t, 1);
  });
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("10 steps in a row were skipped"));
  CHECK(result.outcome.steps == 16);  // step 5, the end of an epoch, has no batch of drafter 1
  CHECK(restarts_of(result) == 0);
}

TEST_CASE("skips and drops of one moment are obeyed by a run that goes back", "[guarantees]") {
  // Steps 4 (a NaN that does not come back) and 6 (its batch was dropped), one drafter.
  const auto run = [](bool dies, const std::filesystem::path& folder) {
    training t({.steps = 12, .noise = 0.05, .save_every = 3}, folder);
    restart_soon(t);
    std::set<uint64_t> seen;
    change(t, 0, [&](uint64_t k, step_sums&) {
      const bool first = seen.insert(k).second;
      if (k == 4 && first) spoil_gradient(t, 0);
      if (k == 8 && first && dies) throw std::runtime_error("lost");
    });
    int bad = 0;
    t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
      auto tensors = capture(b);
      if (b.k == 6 && bad++ < 2) tensors[0].view(-1)[0] = std::nanf("");
      return tensors;
    };
    // The newest checkpoint is lost as well: it goes back to step 3.
    auto& snapshot = t.parts().drafters[0].snapshot;
    snapshot = [inner = snapshot](const save_request& r) -> std::function<void()> {
      if (r.steps == 6) return [] { throw std::runtime_error("disk full"); };
      return inner(r);
    };
    const auto result = run_in_time(t);
    INFO(result.outcome.reason);
    REQUIRE(result.outcome.status == run_status::completed);
    CHECK(restarts_of(result, "drafter_train") == (dies ? 1 : 0));
    CHECK(result.totals.dropped == 1);
    CHECK(result.totals.skipped_steps == 2);  // the step of the dropped batch has no weight
    return state_copy(t.trainer(0));
  };
  const test::scratch_folder calm, disturbed;
  CHECK(same_bits(run(false, calm.path()), run(true, disturbed.path())));
  CHECK(fixed_lines(calm.path()) == fixed_lines(disturbed.path()));
  const auto good = [](const std::filesystem::path& folder) {
    return find_checkpoint(folder / "checkpoints").state;
  };
  CHECK(good(calm.path()).skipped_steps == good(disturbed.path()).skipped_steps);
  CHECK(good(calm.path()).dropped == good(disturbed.path()).dropped);
}

TEST_CASE("loss spikes are flagged, skipped on request, and resume knows the mean",
          "[guarantees]") {
  const layout l{.drafters = 2, .steps = 30, .noise = 0.05, .save_every = 20};
  const auto prepare = [](training& t, double skip_spikes) {
    t.parts().skip_spikes = skip_spikes;
    change(t, 0, [](uint64_t k, step_sums& sums) {
      if (k == 50) sums.loss *= 3;
    });
  };
  const test::scratch_folder shown, skipped, resumed;
  training shows(l, shown.path());
  prepare(shows, 0);
  completes(shows);
  auto lines = fixed_lines(shown.path());
  CHECK(lines_with(lines, "loss_z") == 30 - loss_statistics::least);
  CHECK(lines_with(lines, "\"skipped\":true") == 0);

  training skips(l, skipped.path());
  prepare(skips, 8);
  completes(skips);
  lines = fixed_lines(skipped.path());
  CHECK(lines_with(lines, "\"skipped\":true,\"skipped_for\":\"loss spike\"") == 1);
  CHECK(lines[27].find("loss spike") != std::string::npos);
  CHECK(skips.trainer(0).state().updates() == 29);
  CHECK(same_bits(state_copy(skips.trainer(0)), state_copy(skips.trainer(1))));

  training first(l, resumed.path());
  prepare(first, 8);
  restart_soon(first, 2);
  const auto inner = first.parts().drafters[1].accumulate;
  first.parts().drafters[1].accumulate =
      [&](const drafter_input& input, bool measured, const accumulate_watch& watch) {
        if (input.tokens->k >= 47) throw std::runtime_error("a fault after step 25");
        return inner(input, measured, watch);
      };
  CHECK(run_in_time(first).outcome.saved_step == 20);
  training second(l, resumed.path());
  second.resume();
  prepare(second, 8);
  completes(second);
  CHECK(same_bits(state_copy(second.trainer(0)), state_copy(skips.trainer(0))));
  CHECK(fixed_lines(resumed.path()) == lines);
}

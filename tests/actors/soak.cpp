// Long runs of faults, by hand: ctest -L soak, or test_actors "[soak]". DFLASH_SEED is the first
// seed, DFLASH_RUNS the number of runs; both are printed.
#include "actors/pipeline.hpp"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/actors/fault_fixture.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

struct range {
  uint64_t first = number_of("DFLASH_SEED", 1);
  uint64_t runs;

  explicit range(uint64_t otherwise) : runs(number_of("DFLASH_RUNS", otherwise)) {
    fmt::print("DFLASH_SEED={} DFLASH_RUNS={}\n", first, runs);
  }
};

// Of a seed.
layout any_layout(uint64_t seed) {
  const random_stream stream{seed, random_domain::sampling, 77};
  constexpr uint32_t targets[] = {1, 2, 3, 5};
  layout l;
  l.targets = targets[stream.u32(0) % 4];
  l.drafters = 1 + stream.u32(1) % 3;
  l.accumulation = 1 + stream.u32(2) % 2;
  l.ema = stream.u32(3) % 2 == 0 ? 0.9 : 0;
  l.noise = 0.05;
  l.save_every = stream.u32(4) % 3 == 0 ? 0 : 2 + stream.u32(5) % 5;
  if (stream.u32(6) % 2 == 0)
    l.budget = (l.targets + l.drafters) * training(l).parts().shape.bytes();
  return l;
}

std::string text_of(const layout& l) {
  return fmt::format("{} targets, {} drafters, accumulation {}, ema {}, save_every {}, budget {}",
                     l.targets,
                     l.drafters,
                     l.accumulation,
                     l.ema,
                     l.save_every,
                     l.budget);
}

// A run in which all actors but those named die at seeded places; drafters lose their memory.
struct deaths {
  uint64_t all = 0, drafters = 0;
};
deaths run_with_deaths(uint64_t seed, bool drafters_too) {
  const layout l = any_layout(seed);
  INFO("seed " << seed << ": " << text_of(l));
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  seeded_faults others(seed, {"target_forward", "postprocess", "loader", "metrics"}, 0.05, 5);
  seeded_faults dispatcher(seed + 1000, {"dispatcher"}, 0.01, 3);
  dying_drafters drafters(t, seed + 2000, drafters_too ? 0.02 : 0, 5);
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    others(actor, point);
    dispatcher(actor, point);
    drafters(actor, point);
  };
  const auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), l, drafters.dead());
  return {others.thrown() + dispatcher.thrown() + drafters.thrown(), drafters.thrown()};
}

void many_runs(const range& seeds, bool drafters_too) {
  deaths sum;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.runs; ++seed) {
    const deaths d = run_with_deaths(seed, drafters_too);
    sum.all += d.all;
    sum.drafters += d.drafters;
  }
  fmt::print("{} runs, {} deaths, {} of them drafters\n", seeds.runs, sum.all, sum.drafters);
}

// Stopped at a random moment: in order, at once, nobody left behind.
void start_and_stop(uint64_t seed) {
  const random_stream stream{seed, random_domain::sampling, 78};
  layout l = any_layout(seed);
  l.steps = 100000;
  INFO("seed " << seed << ": " << text_of(l));
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  seeded_faults faults(
      seed, {"target_forward", "postprocess", "loader", "metrics", "dispatcher"}, 0.01, 2);
  seeded_faults drafters(seed + 2000, {"drafter_train"}, 0.005, 2);
  const bool faulty = seed % 2 == 0;
  if (faulty)
    t.parts().faults = [&](const std::string& actor, std::string_view point) {
      faults(actor, point);
      drafters(actor, point);
    };
  std::function<void()> stop;
  std::mutex mutex;
  t.parts().on_started = [&](std::function<void()> s) {
    const std::lock_guard guard(mutex);
    stop = std::move(s);
  };
  std::atomic<bool> over{false};
  std::chrono::steady_clock::time_point asked;
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::microseconds(stream.u32(0) % 60000));
    while (!over) {
      const std::lock_guard guard(mutex);
      if (!stop) continue;
      asked = std::chrono::steady_clock::now();
      stop();
      return;
    }
  });
  const auto result = run_in_time(t);
  over = true;
  stopper.join();
  const auto took = std::chrono::steady_clock::now() - asked;
  INFO(result.outcome.reason);
  CHECK(result.outcome.status == run_status::stopped);
  CHECK(result.outcome.stuck.empty());
  CHECK(result.outcome.saved_step == result.outcome.steps);
  CHECK(took < std::chrono::seconds(10));
  CHECK(fixed_lines(folder.path()).size() >= result.outcome.steps);
}

}  // namespace

TEST_CASE("soak: all actors but the drafters die, in any layout", "[.soak]") {
  many_runs(range(100), false);
}

TEST_CASE("soak: all actors die, in any layout", "[.soak]") {
  many_runs(range(100), true);
}

TEST_CASE("soak: started and stopped at random moments", "[.soak]") {
  const range seeds(200);
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.runs; ++seed) start_and_stop(seed);
}

TEST_CASE("started and stopped at random moments, ten times", "[guarantees]") {
  for (uint64_t seed = 1; seed <= 10; ++seed) start_and_stop(seed);
}

TEST_CASE("any layout with everyone dying, ten times", "[guarantees]") {
  for (uint64_t seed = 1; seed <= 10; ++seed) run_with_deaths(seed, true);
}

// Actors die in the middle of a run, at seeded places: the run goes on, and the weights and the
// lines of metrics.jsonl are those of an undisturbed run. Every run has a deadline: nothing may
// hang.
#include "actors/pipeline.hpp"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/actors/fault_fixture.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

TEST_CASE("exceptions at seeded places: the same bits, no line lost or written twice",
          "[guarantees]") {
  std::set<std::string> points;
  uint64_t deaths = 0;
  for (const uint32_t drafters : {1U, 2U})
    for (const uint32_t targets : {1U, 2U, 3U})
      for (const uint64_t seed : {1U, 2U, 3U}) {
        INFO(targets << " targets, " << drafters << " drafters, seed " << seed);
        const test::scratch_folder folder;
        training t(layout_of(targets, drafters), folder.path());
        restart_soon(t);
        seeded_faults faults(seed, all_but_drafters, 0.08);
        t.parts().faults = std::ref(faults);
        const auto result = run_in_time(t);
        equals_undisturbed(t, result, folder.path(), layout_of(targets, drafters));
        CHECK(restarts_of(result) >= 1);
        CHECK(restarts_of(result, "loader") + restarts_of(result, "metrics") +
                  restarts_of(result, "target_forward") <=
              faults.thrown());
        deaths += faults.thrown();
        points.merge(faults.points());
      }
  INFO(fmt::format("{} deaths at {}", deaths, fmt::join(points, ", ")));
  CHECK(deaths > 100);
  for (const char* point : {"target_forward:message",
                            "target_forward:captured",
                            "postprocess:message",
                            "postprocess:checked",
                            "postprocess:moved",
                            "loader:message",
                            "loader:made",
                            "metrics:message",
                            "metrics:written"})
    CHECK(points.count(point) == 1);
}

TEST_CASE("the dispatcher dies, and with it all that work for it: the same bits", "[guarantees]") {
  uint64_t deaths = 0;
  for (const uint32_t drafters : {1U, 2U})
    for (const uint32_t targets : {1U, 3U})
      for (const uint64_t seed : {1U, 2U, 3U}) {
        INFO(targets << " targets, " << drafters << " drafters, seed " << seed);
        const test::scratch_folder folder;
        training t(layout_of(targets, drafters), folder.path());
        restart_soon(t);
        seeded_faults faults(seed, {"dispatcher", "target_forward", "metrics"}, 0.03);
        t.parts().faults = std::ref(faults);
        const auto result = run_in_time(t);
        equals_undisturbed(t, result, folder.path(), layout_of(targets, drafters));
        deaths += restarts_of(result, "dispatcher");
      }
  CHECK(deaths >= 20);
}

TEST_CASE("exit messages from outside, at seeded batches: the same bits", "[guarantees]") {
  for (const uint32_t drafters : {1U, 2U})
    for (const uint32_t targets : {1U, 3U}) {
      INFO(targets << " targets, " << drafters << " drafters");
      const test::scratch_folder folder;
      training t(layout_of(targets, drafters), folder.path());
      restart_soon(t);
      std::mutex mutex;
      std::shared_ptr<const pipeline_links> links;
      t.parts().on_links = [&](const auto& newest) {
        const std::lock_guard guard(mutex);
        links = newest;
      };
      std::atomic<uint64_t> captures{0}, sent{0};
      for (auto& target : t.parts().targets)
        target = [&, capture = t.capture()](const batch& b) {
          const random_stream stream{31 + targets, random_domain::sampling, captures.fetch_add(1)};
          if (stream.u32(0) % 3 == 0 && sent < 12) {
            ++sent;
            const std::lock_guard guard(mutex);
            const uint32_t lane = stream.u32(1) % targets;
            switch (stream.u32(2) % 4) {
              case 0:
                caf::anon_send_exit(links->targets[lane], caf::exit_reason::kill);
                break;
              case 1:
                caf::anon_send_exit(links->postprocess[lane], caf::exit_reason::user_shutdown);
                break;
              case 2:
                caf::anon_send_exit(links->loader, caf::exit_reason::kill);
                break;
              default:
                caf::anon_send_exit(links->metrics, caf::exit_reason::user_shutdown);
            }
          }
          return capture(b);
        };
      const auto result = run_in_time(t, [&] { links = nullptr; });
      equals_undisturbed(t, result, folder.path(), layout_of(targets, drafters));
      CHECK(sent >= 4);
      CHECK(restarts_of(result) >= 2);
    }
}

TEST_CASE("the reader of kept states dies: the same bits", "[guarantees]") {
  const test::scratch_folder calm_folder, folder;
  layout l = layout_of(2, 1);
  l.keep_bytes = 1 << 20;
  training t(l, folder.path());
  restart_soon(t);
  seeded_faults faults(5, {"postprocess 2"}, 0.15, 10);
  std::atomic<int> reads{0};
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    faults(actor, point);
    if (point == "reads" && ++reads % 3 == 1) throw std::runtime_error("fault at reads");
  };
  const auto result = run_in_time(t);
  REQUIRE(result.outcome.status == run_status::completed);
  CHECK(same_bits(state_copy(t.trainer(0)), undisturbed::of(layout_of(1, 1)).state));
  CHECK(result.totals.captured + result.totals.from_disk == 20);
  CHECK(result.totals.from_disk > 0);
  CHECK(restarts_of(result, "postprocess 2") >= 2);
  CHECK(restarts_of(result, "loader") >= 3);
}

TEST_CASE("a target that keeps failing is retired, the others train on", "[guarantees]") {
  const test::scratch_folder folder;
  training t(layout_of(3, 2), folder.path());
  restart_soon(t, 3);
  t.parts().targets[1] = [](const batch&) -> std::vector<at::Tensor> {
    throw std::runtime_error("device lost");
  };
  // The others wait with their third batch until it has been lost three times.
  std::mutex mutex;
  std::condition_variable lost;
  int losses = 0;
  bool there = true;
  t.parts().on_links = [&](const auto& links) {
    const std::lock_guard guard(mutex);
    if (const bool now = static_cast<bool>(links->targets[1]); std::exchange(there, now) && !now)
      ++losses;
    lost.notify_all();
  };
  for (const size_t i : {0, 2})
    t.parts().targets[i] = [&, capture = t.capture()](const batch& b) {
      std::unique_lock lock(mutex);
      if (b.k >= 4) lost.wait(lock, [&] { return losses == 3; });
      lock.unlock();
      return capture(b);
    };
  const auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), layout_of(1, 2));
  CHECK(restarts_of(result, "target_forward 1") == 2);
  CHECK(state_of(result, "target_forward 1") == activity_text(activity::retired));
  CHECK(state_of(result, "postprocess 1") == activity_text(activity::retired));
  CHECK(restarts_of(result, "target_forward 0") == 0);
}

TEST_CASE("failures that are not in a row retire nobody") {
  training t({});
  restart_soon(t, 2);
  t.parts().targets[0] =
      [&, capture = t.capture(), once = std::make_shared<std::set<uint64_t>>()](const batch& b) {
        if (b.k % 3 == 2 && once->insert(b.k).second) throw std::runtime_error("hiccup");
        return capture(b);
      };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::completed);
  CHECK(restarts_of(result, "target_forward 0") == 6);
  CHECK(restarts_of(result, "postprocess 0") == 6);
}

TEST_CASE("the run fails with the reason of the last target", "[guarantees]") {
  for (const uint32_t targets : {1U, 2U}) {
    training t(layout_of(targets, 1));
    restart_soon(t, 3);
    for (auto& target : t.parts().targets)
      target = [capture = t.capture()](const batch& b) {
        if (b.k >= 5) throw std::runtime_error("weights are gone");
        return capture(b);
      };
    const auto result = run_in_time(t);
    CHECK(result.outcome.status == run_status::failed);
    CHECK_THAT(result.outcome.reason, Catch::Contains("weights are gone"));
    CHECK_THAT(result.outcome.reason, Catch::Contains("target_forward"));
    CHECK(result.outcome.steps <= 5);
  }
}

TEST_CASE("a loader that keeps failing ends the run, metrics that keeps failing does not") {
  const test::scratch_folder folder;
  training t(layout_of(1, 2), folder.path());
  restart_soon(t, 3);
  std::string victim;
  t.parts().faults = [&](const std::string& actor, std::string_view) {
    if (actor == victim) throw std::runtime_error("out of order");
  };
  SECTION("loader") {
    victim = "loader";
    const auto result = run_in_time(t);
    CHECK(result.outcome.status == run_status::failed);
    CHECK(result.outcome.reason == "loader: out of order");
  }
  SECTION("metrics") {
    victim = "metrics";
    t.parts().saves.every = 5;
    const auto result = run_in_time(t);
    REQUIRE(result.outcome.status == run_status::completed);
    CHECK(state_of(result, "metrics") == activity_text(activity::retired));
    CHECK(result.outcome.saved_step == 20);
    CHECK(same_bits(state_copy(t.trainer(0)), undisturbed::of(layout_of(1, 2)).state));
  }
}

TEST_CASE("metrics dies while a checkpoint waits for it: no line is missing", "[guarantees]") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .noise = 0.05, .save_every = 2}, folder.path());
  restart_soon(t);
  seeded_faults faults(3, {"metrics"}, 0.2, 25);
  t.parts().faults = std::ref(faults);
  const auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), layout_of(1, 2));
  CHECK(result.outcome.saved_step == 20);
  CHECK(restarts_of(result, "metrics") >= 10);
}

TEST_CASE("profiler and inspector come back, the inspector is published again") {
  training t(layout_of(1, 1));
  restart_soon(t);
  t.parts().profile_interval = 1000;
  std::atomic<int> published{0};
  t.parts().publish = [&](const run_inspector_actor&) { ++published; };
  std::mutex mutex;
  std::shared_ptr<const pipeline_links> links;
  t.parts().on_links = [&](const auto& newest) {
    const std::lock_guard guard(mutex);
    links = newest;
  };
  // The batch after the exits waits until both are back.
  t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
    std::unique_lock lock(mutex);
    if (b.k == 3) {
      caf::anon_send_exit(links->profiler, caf::exit_reason::kill);
      caf::anon_send_exit(links->inspector, caf::exit_reason::kill);
      while (published < 2) {
        lock.unlock();
        std::this_thread::yield();
        lock.lock();
      }
    }
    return capture(b);
  };
  const auto result = run_in_time(t, [&] { links = nullptr; });
  CHECK(result.outcome.status == run_status::completed);
  CHECK(published == 2);
  CHECK(restarts_of(result, "inspector") == 1);
  CHECK(restarts_of(result, "profiler") <= 1);  // its back-off may outlast the run
}

TEST_CASE("hidden states that are never finite end the run with a diagnosis, not with restarts",
          "[guarantees]") {
  training t({.targets = 2, .steps = 40});
  for (auto& target : t.parts().targets)
    target = [capture = t.capture()](const batch& b) {
      auto tensors = capture(b);
      if (b.k >= 4) tensors[0].view(-1)[0] = std::nanf("");
      return tensors;
    };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("batches in a row"));
  CHECK(restarts_of(result) == 0);
}

TEST_CASE("a drafter that keeps failing ends the run with its reason", "[guarantees]") {
  training t({.targets = 2, .drafters = 2});
  restart_soon(t, 3);
  const auto inner = t.parts().drafters[1].accumulate;
  t.parts().drafters[1].accumulate =
      [inner](const drafter_input& input, bool measured, const accumulate_watch& watch) {
        if (input.tokens->k >= 9) throw std::runtime_error("no memory");
        return inner(input, measured, watch);
      };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK(result.outcome.reason == "drafter_train 1: no memory");
  CHECK(result.outcome.steps == 4);
  // One more if step 3 was not committed on drafter 0 when drafter 1 died first.
  CHECK(restarts_of(result, "drafter_train 1") >= 2);
  CHECK(restarts_of(result, "drafter_train 1") <= 3);
}

TEST_CASE("replicas that disagree end the run in order", "[guarantees]") {
  const test::scratch_folder folder;
  training t({.targets = 1, .drafters = 2, .save_every = 2}, folder.path());
  const auto inner = t.parts().drafters[1].update;
  t.parts().drafters[1].update = [inner](
                                     const at::Tensor& g, double weight, uint64_t step, bool skip) {
    update_report report = inner(g, weight, step, skip);
    if (step == 3) report.grad_norm *= 2;
    return report;
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::StartsWith("replicas disagree after step 3"));
  CHECK(result.outcome.saved_step == 2);
}

TEST_CASE("a coordinator that dies ends the run, all actors end", "[guarantees]") {
  training t({.targets = 1, .drafters = 2});
  caf::actor_addr coordinator;
  t.parts().on_links = [&](const auto& links) { coordinator = links->coordinator.address(); };
  t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
    if (b.k == 9) caf::anon_send_exit(coordinator, caf::exit_reason::kill);
    return capture(b);
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::StartsWith("coordinator"));
  CHECK(result.outcome.steps <= 5);
}

TEST_CASE("a run that stands still is stopped, and those that cannot end are named",
          "[guarantees]") {
  training t({.targets = 1, .drafters = 1});
  t.parts().stall_floor = std::chrono::milliseconds(400);
  t.parts().stage_deadline = std::chrono::milliseconds(300);
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
    if (b.k == 7) {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return over; });
    }
    return capture(b);
  };
  const auto result = run_in_time(t, [&] {
    const std::lock_guard guard(mutex);
    over = true;
    wake.notify_all();
  });
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("nothing was committed for"));
  CHECK(result.outcome.steps <= 7);
  const auto& stuck = result.outcome.stuck;
  CHECK(std::count(stuck.begin(), stuck.end(), "target_forward 0") == 1);
}

TEST_CASE("a run that never makes a batch is stopped too, later", "[guarantees]") {
  training t({.targets = 1, .drafters = 1});
  t.parts().stall_floor = std::chrono::milliseconds(20);  // 60 of them
  t.parts().stage_deadline = std::chrono::milliseconds(300);
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return over; });
    return capture(b);
  };
  const auto result = run_in_time(t, [&] {
    const std::lock_guard guard(mutex);
    over = true;
    wake.notify_all();
  });
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason,
             Catch::StartsWith("nothing was committed for 1.20 s, and no batch"));
  CHECK(result.outcome.steps == 0);
}

TEST_CASE("a checkpoint that takes long is no stall") {
  training t({.targets = 1, .drafters = 1, .steps = 6, .save_every = 3});
  t.parts().stall_floor = std::chrono::milliseconds(200);
  t.parts().drafters[0].snapshot = [](const save_request&) {
    return [] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); };
  };
  const auto result = run_in_time(t);
  INFO(result.outcome.reason);
  CHECK(result.outcome.status == run_status::completed);
}

TEST_CASE("restarts: the delay doubles with each failure in a row, work resets it") {
  using std::chrono::milliseconds;
  restart_policy policy({5, milliseconds(100), milliseconds(300)});
  CHECK(policy.failed(0) == milliseconds(100));
  CHECK(policy.failed(0) == milliseconds(200));
  CHECK(policy.failed(0) == milliseconds(300));
  CHECK(policy.failed(7) == milliseconds(100));
  CHECK(policy.failed(7) == milliseconds(200));
  CHECK(policy.failed(7) == milliseconds(300));
  CHECK(policy.failed(7) == milliseconds(300));
  CHECK_FALSE(policy.failed(7));
  CHECK(policy.failures_in_a_row() == 5);
}

TEST_CASE("with patience nobody is retired before its time", "[actors]") {
  using std::chrono::milliseconds;
  restart_policy policy({2, milliseconds(100), milliseconds(100), milliseconds(1000)});
  const auto at = [](int ms) {
    return std::chrono::steady_clock::time_point(milliseconds(50'000 + ms));
  };
  CHECK(policy.failed(0, at(0)));
  CHECK(policy.failed(0, at(900)));
  CHECK(policy.failed(0, at(999)));
  CHECK_FALSE(policy.failed(0, at(1000)));
  CHECK(policy.failed(1, at(2000)));  // it had worked: counted anew
  CHECK(policy.failed(1, at(2999)));
  CHECK_FALSE(policy.failed(1, at(3000)));
}

// Actors die in the middle of a run, at seeded places: the run goes on, and the weights and the
// lines of metrics.jsonl are those of an undisturbed run. Every run has a deadline: nothing may
// hang.
#include "actors/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "actors/supervision.hpp"
#include "data/random.hpp"
#include "tests/actors/training_fixture.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

constexpr std::chrono::seconds patience{120};

// A run that hangs cannot be ended from inside: the program ends, and says where.
pipeline_result run_in_time(training& t, const std::function<void()>& before_the_system_ends = {}) {
  auto running = std::async(std::launch::async, [&] { return t.run(before_the_system_ends); });
  if (running.wait_for(patience) != std::future_status::ready) {
    fmt::print(stderr, "a run hangs: {}\n", Catch::getResultCapture().getCurrentTestName());
    std::abort();
  }
  return running.get();
}

uint64_t restarts_of(const pipeline_result& result, const std::string& name = {}) {
  uint64_t sum = 0;
  for (const mailbox_report& m : result.mailboxes)
    if (m.actor.starts_with(name)) sum += m.restarts;
  return sum;
}

std::string state_of(const pipeline_result& result, const std::string& name) {
  for (const mailbox_report& m : result.mailboxes)
    if (m.actor == name) return m.state;
  return {};
}

void restart_soon(training& t, uint32_t max_failures = 1000) {
  t.parts().restart = {max_failures, std::chrono::milliseconds(1), std::chrono::milliseconds(4)};
}

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0;
  for (const char c : text) hash = hash * 131 + static_cast<uint64_t>(c);
  return hash;
}

// Throws at a share of the fault points of some actors, at most `most` times each, and delays
// others a little. Where depends on the seed and on how often an actor has passed a point.
class seeded_faults {
public:
  seeded_faults(uint64_t seed, std::vector<std::string> actors, double share, uint64_t most = 6)
      : seed_(seed), actors_(std::move(actors)), share_(share), most_(most) {}

  void operator()(const std::string& actor, std::string_view point) {
    uint64_t passed = 0;
    {
      const std::lock_guard guard(mutex_);
      passed = passed_[actor]++;
    }
    const random_stream stream{seed_ + hash_of(actor), random_domain::sampling, passed};
    if (stream.u32(3) % 8 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(stream.u32(2) % 1000));
    if (stream.uniform(0) >= share_) return;
    for (const std::string& name : actors_)
      if (actor.starts_with(name)) die(actor, point);
  }

  uint64_t thrown() const {
    const std::lock_guard guard(mutex_);
    uint64_t sum = 0;
    for (const auto& [actor, count] : thrown_) sum += count;
    return sum;
  }
  std::set<std::string> points() const {
    const std::lock_guard guard(mutex_);
    return points_;
  }

private:
  void die(const std::string& actor, std::string_view point) {
    {
      const std::lock_guard guard(mutex_);
      if (thrown_[actor] >= most_) return;
      ++thrown_[actor];
      points_.insert(actor.substr(0, actor.find(' ')) + ":" + std::string(point));
    }
    throw std::runtime_error(fmt::format("fault at {}", point));
  }

  uint64_t seed_;
  std::vector<std::string> actors_;
  double share_;
  uint64_t most_;
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> passed_, thrown_;
  std::set<std::string> points_;
};

const std::vector<std::string> those_that_restart = {
    "target_forward", "postprocess", "loader", "metrics"};

layout layout_of(uint32_t targets, uint32_t drafters) {
  return {.targets = targets, .drafters = drafters, .noise = 0.05};
}

// Its weights and lines, made once for each number of drafters.
struct undisturbed {
  at::Tensor weights;
  std::vector<std::string> lines;

  static const undisturbed& with(uint32_t drafters) {
    static std::map<uint32_t, undisturbed> known;
    auto& u = known[drafters];
    if (u.lines.empty()) {
      const test::scratch_folder folder;
      training t(layout_of(1, drafters), folder.path());
      completes(t);
      u.weights = t.weights().clone();
      u.lines = fixed_lines(folder.path());
    }
    return u;
  }
};

void equals_undisturbed(const training& t,
                        const pipeline_result& result,
                        const std::filesystem::path& folder,
                        uint32_t drafters) {
  const undisturbed& calm = undisturbed::with(drafters);
  INFO(result.outcome.reason);
  REQUIRE(result.outcome.status == run_status::completed);
  CHECK(result.outcome.stuck.empty());
  for (uint32_t i = 0; i < drafters; ++i) CHECK(at::equal(t.weights(i), calm.weights));
  CHECK(fixed_lines(folder) == calm.lines);
  CHECK(result.totals.steps == 20);
  CHECK(result.totals.captured == result.totals.batches);
}

}  // namespace

TEST_CASE("exceptions at seeded places: the same bits, no line lost or written twice") {
  std::set<std::string> points;
  uint64_t deaths = 0;
  for (const uint32_t drafters : {1U, 2U})
    for (const uint32_t targets : {1U, 2U, 3U})
      for (const uint64_t seed : {1U, 2U, 3U}) {
        INFO(targets << " targets, " << drafters << " drafters, seed " << seed);
        const test::scratch_folder folder;
        training t(layout_of(targets, drafters), folder.path());
        restart_soon(t);
        seeded_faults faults(seed, those_that_restart, 0.08);
        t.parts().faults = std::ref(faults);
        const auto result = run_in_time(t);
        equals_undisturbed(t, result, folder.path(), drafters);
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

TEST_CASE("the dispatcher dies, and with it all that work for it: the same bits") {
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
        equals_undisturbed(t, result, folder.path(), drafters);
        deaths += restarts_of(result, "dispatcher");
      }
  CHECK(deaths >= 20);
}

TEST_CASE("exit messages from outside, at seeded batches: the same bits") {
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
      equals_undisturbed(t, result, folder.path(), drafters);
      CHECK(sent >= 4);
      CHECK(restarts_of(result) >= 2);
    }
}

TEST_CASE("the reader of kept states dies: the same bits") {
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
  CHECK(at::equal(t.weights(), undisturbed::with(1).weights));
  CHECK(result.totals.captured + result.totals.from_disk == 20);
  CHECK(result.totals.from_disk > 0);
  CHECK(restarts_of(result, "postprocess 2") >= 2);
  CHECK(restarts_of(result, "loader") >= 3);
}

TEST_CASE("a target that keeps failing is retired, the others train on") {
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
  equals_undisturbed(t, result, folder.path(), 2);
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

TEST_CASE("the run fails with the reason of the last target") {
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
    CHECK(at::equal(t.weights(), undisturbed::with(2).weights));
  }
}

TEST_CASE("metrics dies while a checkpoint waits for it: no line is missing") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .noise = 0.05, .save_every = 2}, folder.path());
  restart_soon(t);
  seeded_faults faults(3, {"metrics"}, 0.2, 25);
  t.parts().faults = std::ref(faults);
  const auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), 2);
  CHECK(result.outcome.saved_step == 20);
  CHECK(restarts_of(result, "metrics") >= 10);
}

TEST_CASE("profiler and inspector come back, the inspector is published again") {
  training t(layout_of(1, 1));
  restart_soon(t);
  t.parts().profile_interval = 1000;
  std::atomic<int> published{0};
  t.parts().publish = [&](const inspector_actor&) { ++published; };
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

TEST_CASE("hidden states that are never finite end the run with a diagnosis, not with restarts") {
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

TEST_CASE("a drafter that dies ends the run with its reason") {
  training t({.targets = 2, .drafters = 2});
  const auto inner = t.parts().drafters[1].accumulate;
  t.parts().drafters[1].accumulate = [inner](const drafter_input& input, bool measured) {
    if (input.tokens->k >= 9) throw std::runtime_error("no memory");
    return inner(input, measured);
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK(result.outcome.reason == "drafter_train 1: no memory");
  CHECK(result.outcome.steps <= 5);
}

TEST_CASE("a coordinator that dies ends the run with its reason") {
  training t({.targets = 1, .drafters = 2});
  const auto inner = t.parts().drafters[1].update;
  t.parts().drafters[1].update = [inner](const at::Tensor& g, double weight, uint64_t step) {
    update_report report = inner(g, weight, step);
    if (step == 3) report.grad_norm *= 2;
    return report;
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("replicas disagree after step 3"));
}

TEST_CASE("a run that stands still is stopped, and those that cannot end are named") {
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

// Drafters die at named points of a step and come back: weights, moments, averages and the lines of
// metrics.jsonl are those of an undisturbed run. A drafter that dies leaves nothing behind but its
// gradient: masters and moments are spoiled.
#include "actors/pipeline.hpp"

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/actors/fault_fixture.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

struct death {
  uint32_t rank = 0;
  std::string point;
  uint64_t pass = 0;  // which one, from 0, over all lives
};

// Deaths at given passes of given points.
class planned_deaths {
public:
  planned_deaths(training& t, std::vector<death> deaths) : t_(t), deaths_(std::move(deaths)) {}

  void operator()(const std::string& actor, std::string_view point) {
    if (!actor.starts_with("drafter_train")) return;
    const auto rank = static_cast<uint32_t>(std::stoul(actor.substr(14)));
    {
      const std::lock_guard guard(mutex_);
      const uint64_t pass = passed_[{rank, std::string(point)}]++;
      const auto planned = std::find_if(deaths_.begin(), deaths_.end(), [&](const death& d) {
        return d.rank == rank && d.point == point && d.pass == pass;
      });
      if (planned == deaths_.end()) return;
      deaths_.erase(planned);
    }
    spoil(t_.trainer(rank));
    throw std::runtime_error(fmt::format("fault at {}", point));
  }
  bool all_happened() const {
    const std::lock_guard guard(mutex_);
    return deaths_.empty();
  }

private:
  training& t_;
  mutable std::mutex mutex_;
  std::vector<death> deaths_;
  std::map<std::pair<uint32_t, std::string>, uint64_t> passed_;
};

// Runs with these deaths and compares.
pipeline_result with_deaths(layout l, const std::vector<death>& deaths) {
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  planned_deaths planned(t, deaths);
  t.parts().faults = std::ref(planned);
  auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), l);
  CHECK(planned.all_happened());
  CHECK(restarts_of(result, "drafter_train") >= deaths.size() - 1);
  return result;
}

// Steps of the checkpoints that are written, in the checkpointer's thread.
void note_saves(training& t, std::vector<uint64_t>& saved) {
  auto& snapshot = t.parts().drafters[0].snapshot;
  snapshot = [&saved, inner = snapshot](const save_request& r) -> std::function<void()> {
    return [&saved, write = inner(r), steps = r.steps] {
      write();
      saved.push_back(steps);
    };
  };
}

uint64_t smallest_budget(const layout& l) {
  return (l.targets + l.drafters) * training(l).parts().shape.bytes();
}

const std::vector<std::string> points = {"forward", "reduce", "reduced", "update", "updated"};

}  // namespace

TEST_CASE("a drafter dies at each point of a step: the same bits", "[guarantees]") {
  uint64_t runs = 0, deaths = 0;
  for (const uint32_t drafters : {1U, 2U, 3U})
    for (const int64_t accumulation : {1, 2})
      for (const bool small : {false, true})
        for (const std::string& point : points) {
          layout l{.targets = small ? 2U : 1U,
                   .drafters = drafters,
                   .steps = 12,
                   .accumulation = accumulation,
                   .ema = 0.9,
                   .noise = 0.05,
                   .save_every = small ? 0U : 5U};
          if (small) l.budget = smallest_budget(l);
          INFO(drafters << " drafters, accumulation " << accumulation << ", "
                        << (small ? "smallest budget" : "default") << ", " << point);
          // The first step, one in the middle, one near the end; another rank each time.
          std::vector<death> plan;
          for (const uint64_t pass : {0U, 5U, 9U})
            plan.push_back({static_cast<uint32_t>(pass % drafters), point, pass});
          with_deaths(l, plan);
          ++runs;
          deaths += plan.size();
        }
  CHECK(runs == 60);
  CHECK(deaths == 180);
}

TEST_CASE("those that live train nothing twice, the dead one its open step alone", "[guarantees]") {
  for (const std::string point : {"forward", "reduce", "reduced", "update"}) {
    INFO(point);
    layout l{.targets = 2, .drafters = 2, .steps = 10, .accumulation = 2, .noise = 0.05};
    const test::scratch_folder folder;
    training t(l, folder.path());
    restart_soon(t);
    // In the open step 3: the second of its two batches, or after both.
    const uint64_t pass = point == "forward" ? 6 : 3;
    planned_deaths planned(t, {{1, point, pass}});
    // "reduced": the other one has not, so that there is no go.
    std::atomic<bool> gone{false};
    std::atomic<int> reductions{0};
    t.parts().on_links = [&](const auto& links) { gone = gone || !links->drafters[1]; };
    t.parts().faults = [&](const std::string& actor, std::string_view at) {
      if (actor == "drafter_train 0" && at == "reduce" && ++reductions == 4 && point == "reduced")
        while (!gone) std::this_thread::yield();
      planned(actor, at);
    };
    std::vector<uint64_t> trained[2];
    for (const uint32_t rank : {0U, 1U}) {
      auto& accumulate = t.parts().drafters[rank].accumulate;
      accumulate = [&, rank, inner = accumulate](
                       const drafter_input& input, bool measured, const accumulate_watch& watch) {
        trained[rank].push_back(input.tokens->k);
        return inner(input, measured, watch);
      };
    }
    const auto result = run_in_time(t);
    equals_undisturbed(t, result, folder.path(), l);
    std::vector<uint64_t> own, twice;
    const step_plan& plan = *t.parts().plan;
    for (uint64_t k = 0; k < plan.total_batches(); ++k) {
      if (k % 2 == 0) {
        own.push_back(k);
        continue;
      }
      const bool last_before = plan.step_of(k) == 3 && plan.step_of(k + 2) != 3;
      twice.push_back(k);
      // Before the go its batches of the open step come back, in order; after it, none does.
      if (last_before && point != "update")
        for (uint64_t again = plan.step(3).first_k; again <= k; ++again)
          if (again % 2 == 1) twice.push_back(again);
    }
    CHECK(trained[0] == own);
    CHECK(trained[1] == twice);
  }
}

TEST_CASE("two drafters die, in the same phase or in different ones: the same bits",
          "[guarantees]") {
  for (const uint32_t drafters : {2U, 3U})
    for (const std::string& one : points)
      for (const std::string& other : points) {
        INFO(drafters << " drafters: " << one << ", " << other);
        with_deaths({.targets = 1,
                     .drafters = drafters,
                     .steps = 8,
                     .accumulation = 2,
                     .noise = 0.05,
                     .save_every = 3},
                    {{0, one, 4}, {1, other, 4}});
      }
}

TEST_CASE("drafters die while they come back: the same bits", "[guarantees]") {
  for (const uint32_t drafters : {1U, 2U, 3U}) {
    INFO(drafters << " drafters");
    const uint32_t last = drafters - 1;
    with_deaths({.targets = 2, .drafters = drafters, .steps = 8, .noise = 0.05, .save_every = 3},
                {{last, "forward", 4}, {last, "joined", 0}, {last, "joined", 1}});
    // And when it has just come back.
    with_deaths({.targets = 2, .drafters = drafters, .steps = 8, .noise = 0.05, .save_every = 3},
                {{last, "update", 4}, {last, "forward", 5}, {0, "reduced", 6}});
  }
}

TEST_CASE("the donor of a state dies while it is copied: the copy is void", "[guarantees]") {
  layout l{.targets = 1, .drafters = 2, .steps = 8, .noise = 0.05, .save_every = 3};
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  planned_deaths planned(t, {{1, "forward", 4}});
  t.parts().faults = std::ref(planned);
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<const pipeline_links> links;
  t.parts().on_links = [&](const auto& newest) {
    const std::lock_guard guard(mutex);
    links = newest;
    changed.notify_all();
  };
  std::atomic<int> copies{0};
  t.parts().drafters[1].load_state =
      [&, inner = t.parts().drafters[1].load_state](const replica_state& from) {
        if (copies++ == 0) {
          std::unique_lock lock(mutex);
          caf::anon_send_exit(links->drafters[0], caf::exit_reason::kill);
          changed.wait(lock, [&] { return !links->drafters[0]; });
          lock.unlock();
          spoil(t.trainer(0));
        }
        inner(from);
      };
  const auto result = run_in_time(t, [&] { links = nullptr; });
  equals_undisturbed(t, result, folder.path(), l);
  CHECK(planned.all_happened());
  CHECK(copies >= 1);
  CHECK(restarts_of(result, "drafter_train 0") == 1);
  CHECK(restarts_of(result, "drafter_train 1") == 2);
}

// The copy is complete and its owner at work before anybody can know that the donor is gone.
TEST_CASE("the donor of a state dies before it vouches for the copy: the copy is void",
          "[guarantees]") {
  // Each step has batches 4s .. 4s + 3, the even ones for drafter 0.
  layout l{.targets = 2, .drafters = 2, .steps = 8, .accumulation = 2, .noise = 0.05};
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  constexpr uint64_t last_before_the_copy = 10;  // of step 2, trained by the donor while it holds
  latch held, spoiled, copy_works;
  planned_deaths planned(t, {{1, "forward", 4}});  // in step 2
  std::atomic<bool> copied{false};
  t.parts().drafters[0].state = [&, inner = t.parts().drafters[0].state] {
    held.open();
    return inner();
  };
  for (auto& capture : t.parts().targets)
    capture = [&, inner = capture](const batch& b) {
      if (b.k == last_before_the_copy) held.wait();
      return inner(b);
    };
  t.parts().drafters[1].load_state =
      [&, inner = t.parts().drafters[1].load_state](const replica_state& from) {
        if (!copied) spoiled.wait();
        inner(from);
        copied = true;
      };
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    if (actor == "drafter_train 0" && point == "forward" && held.is_open() && !spoiled.is_open()) {
      spoil(t.trainer(0));
      spoiled.open();
      copy_works.wait();
      throw std::runtime_error("fault at forward");
    }
    planned(actor, point);
    if (actor == "drafter_train 1" && point == "forward" && copied) copy_works.open();
  };
  const auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), l);
  CHECK(planned.all_happened());
  CHECK(copy_works.is_open());
  CHECK(restarts_of(result, "dispatcher") == 1);  // gone back to the start: no replica was left
}

TEST_CASE("drafter 0 dies when it is to save: each checkpoint once", "[guarantees]") {
  for (const uint32_t drafters : {1U, 2U}) {
    INFO(drafters << " drafters");
    layout l{.targets = 1, .drafters = drafters, .steps = 12, .noise = 0.05, .save_every = 3};
    const test::scratch_folder folder;
    training t(l, folder.path());
    restart_soon(t);
    planned_deaths planned(t, {{0, "save", 0}, {0, "save", 2}, {0, "save", 5}});
    t.parts().faults = std::ref(planned);
    std::vector<uint64_t> saved;
    note_saves(t, saved);
    const auto result = run_in_time(t);
    equals_undisturbed(t, result, folder.path(), l);
    CHECK(planned.all_happened());
    CHECK(result.outcome.saved_step == 12);
    CHECK(std::set<uint64_t>(saved.begin(), saved.end()).size() == saved.size());
    CHECK(std::is_sorted(saved.begin(), saved.end()));
    CHECK(find_checkpoint(folder.path() / "checkpoints").refusals.empty());
  }
}

TEST_CASE("a checkpoint that is lost with drafter 0 is made up for", "[guarantees]") {
  // It dies with the request, and with a go behind it: nobody has that state any more.
  layout l{.targets = 1, .drafters = 2, .steps = 6, .noise = 0.05, .save_every = 3};
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  std::vector<uint64_t> saved;
  note_saves(t, saved);
  // Metrics is slow, so that step 4 is reduced before the save is asked for.
  latch reduced, updated;
  std::atomic<bool> once{true};
  std::atomic<int> written{0}, reductions{0}, updates{0};
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    if (actor == "metrics" && point == "written" && ++written == 3) reduced.wait();
    if (actor == "drafter_train 0" && point == "reduced" && ++reductions == 4) reduced.open();
    if (actor == "drafter_train 1" && point == "updated" && ++updates == 4) updated.open();
    if (actor != "drafter_train 0" || point != "save" || !once.exchange(false)) return;
    updated.wait();
    spoil(t.trainer(0));
    throw std::runtime_error("fault at save");
  };
  const auto result = run_in_time(t);
  equals_undisturbed(t, result, folder.path(), l);
  CHECK(saved == std::vector<uint64_t>{4, 6});
}

TEST_CASE("without replicas and checkpoints the run begins again: the same bits", "[guarantees]") {
  const auto result = with_deaths({.targets = 2, .drafters = 1, .steps = 8, .noise = 0.05},
                                  {{0, "updated", 2}, {0, "forward", 9}, {0, "reduced", 12}});
  CHECK(restarts_of(result, "dispatcher") == 3);
}

TEST_CASE("steps that are done again and differ end the run with a diagnosis", "[guarantees]") {
  layout l{.targets = 1, .drafters = 1, .steps = 8, .save_every = 4};
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  planned_deaths planned(t, {{0, "forward", 6}});
  t.parts().faults = std::ref(planned);
  std::atomic<bool> again{false};
  t.parts().drafters[0].restore = [&, inner = t.parts().drafters[0].restore] {
    again = true;
    return inner();
  };
  t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
    auto tensors = capture(b);
    if (again && b.k == 5) tensors[0].view(-1)[0] += 1;
    return tensors;
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("step 6, done again"));
  CHECK(result.outcome.saved_step == 4);
}

TEST_CASE("a drafter that cannot go back ends the run", "[guarantees]") {
  training t({.targets = 1, .drafters = 1, .steps = 8});
  restart_soon(t, 3);
  planned_deaths planned(t, {{0, "forward", 3}});
  t.parts().faults = std::ref(planned);
  t.parts().drafters[0].restore = []() -> uint64_t {
    throw std::runtime_error("no good checkpoint is left");
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("no good checkpoint is left"));
}

TEST_CASE("a stop while the run goes back: one step from there, saved", "[guarantees]") {
  layout l{.targets = 1, .drafters = 1, .steps = 20, .noise = 0.05, .save_every = 4};
  const test::scratch_folder folder;
  training t(l, folder.path());
  restart_soon(t);
  planned_deaths planned(t, {{0, "forward", 10}});
  t.parts().faults = std::ref(planned);
  std::function<void()> stop;
  t.parts().on_started = [&](std::function<void()> s) { stop = std::move(s); };
  t.parts().drafters[0].restore = [&, inner = t.parts().drafters[0].restore] {
    stop();
    return inner();
  };
  const auto result = run_in_time(t);
  CHECK(result.outcome.status == run_status::stopped);
  CHECK(result.outcome.steps == 9);
  CHECK(result.outcome.saved_step == 9);
  training rest(l, folder.path());
  rest.resume();
  completes(rest);
  CHECK(same_bits(state_copy(rest.trainer(0)), undisturbed::of(l).state));
  CHECK(fixed_lines(folder.path()) == undisturbed::of(l).lines);
}

TEST_CASE("everything dies at seeded places: the same bits", "[guarantees]") {
  std::vector<std::string> all = all_but_drafters;
  all.push_back("dispatcher");
  uint64_t deaths = 0;
  for (const uint32_t drafters : {1U, 2U, 3U})
    for (const uint64_t seed : {1U, 2U, 3U, 4U}) {
      INFO(drafters << " drafters, seed " << seed);
      layout l = layout_of(1 + static_cast<uint32_t>(seed) % 3, drafters);
      l.save_every = seed % 2 == 0 ? 4 : 0;
      const test::scratch_folder folder;
      training t(l, folder.path());
      restart_soon(t);
      seeded_faults faults(seed, all, 0.02, 3);
      dying_drafters drafters_die(t, seed + 100, 0.015, 4);
      t.parts().faults = [&](const std::string& actor, std::string_view point) {
        faults(actor, point);
        drafters_die(actor, point);
      };
      const auto result = run_in_time(t);
      equals_undisturbed(t, result, folder.path(), l, drafters_die.dead());
      deaths += drafters_die.thrown();
    }
  CHECK(deaths >= 20);
}

// Saves and evaluations beside training: what waits for what, and what a failure changes.
#include <atomic>
#include <chrono>
#include <thread>

#include "actors/save_book.hpp"
#include "config/error.hpp"
#include "tests/actors/latch.hpp"
#include "tests/actors/training_fixture.hpp"

#include <catch2/catch.hpp>

using namespace dflash;
using namespace dflash::pipeline_test;
namespace fs = std::filesystem;

namespace {

save_options rhythm(uint64_t every, uint64_t eval_every, uint64_t total_steps) {
  save_options o;
  o.every = every;
  o.eval_every = eval_every;
  o.total_steps = total_steps;
  return o;
}

save_request after(uint64_t steps) {
  save_request r;
  r.steps = steps;
  return r;
}

evaluation with_tau(uint64_t step, double tau) {
  evaluation e;
  e.step = step;
  e.tau = tau;
  return e;
}

// An evaluator that knows the figures: tau by step. Takes `delay` for each of two pieces.
void evaluate_as(training& t,
                 uint64_t every,
                 uint64_t patience,
                 std::function<double(uint64_t)> tau,
                 std::chrono::milliseconds delay = std::chrono::milliseconds(0)) {
  t.parts().saves.eval_every = every;
  t.parts().saves.patience = patience;
  t.parts().evaluate = [tau = std::move(tau), delay] {
    struct at_work {
      uint64_t steps = 0;
      int pieces = 0;
    };
    auto work = std::make_shared<at_work>();
    return evaluation_work{[work](uint64_t steps) {
                             *work = {steps, 0};
                           },
                           [work, tau, delay]() -> std::optional<evaluation> {
                             std::this_thread::sleep_for(delay);
                             if (++work->pieces < 2) return std::nullopt;
                             return with_tau(work->steps, tau(work->steps));
                           }};
  };
}

std::vector<std::string> lines_of(const fs::path& folder, bool evaluations) {
  std::vector<std::string> lines;
  for (const std::string& line : fixed_lines(folder))
    if ((line.find("\"kind\"") != std::string::npos) == evaluations) lines.push_back(line);
  return lines;
}

at::Tensor undisturbed(layout l) {
  training t(l);
  completes(t);
  return t.weights().clone();
}

}  // namespace

TEST_CASE("saves: one snapshot at a time, the next one waits for the disk and holds the go") {
  save_book book(rhythm(2, 0, 20));
  CHECK_FALSE(book.is_due(1, false));
  CHECK(book.is_due(2, false));
  CHECK(book.is_due(3, true));
  book.ask(after(2), false, false);
  CHECK(book.holds_for_save());
  CHECK_FALSE(book.begin());  // metrics has not written yet
  book.flushed();
  REQUIRE(book.begin());
  CHECK_FALSE(book.holds_for_save());
  book.ask(after(4), false, false);
  book.flushed();
  CHECK(book.waits_for_disk());
  CHECK_FALSE(book.begin());
  CHECK(book.holds_for_save());
  CHECK(book.end(2, true));
  CHECK_FALSE(book.waits_for_disk());
  CHECK(book.begin()->steps == 4);
  CHECK_FALSE(book.end(2, true));  // long over
  CHECK(book.lose_copy() == 4);
  CHECK(book.is_idle());
}

TEST_CASE("saves: a copy that the drafter had made is not lost with it") {
  save_book book(rhythm(2, 0, 20));
  book.ask(after(2), false, false);
  book.flushed();
  book.begin();
  book.copied(2);
  CHECK_FALSE(book.lose_copy());
  CHECK(book.lose() == 2);
}

TEST_CASE("evaluations: the next go waits for the copy of what is to be evaluated, no other") {
  save_book book(rhythm(2, 4, 20));
  for (const uint64_t steps : {2U, 4U}) {
    book.ask(after(steps), false, false);
    book.flushed();
    book.begin();
    CHECK(book.holds_for_copy() == (steps == 4));
    book.copied(steps);
    CHECK_FALSE(book.holds_for_copy());
    book.end(steps, true);
  }
}

TEST_CASE(
    "evaluations: the go of the next one's step waits, and what is under evaluation is kept") {
  save_book book(rhythm(0, 10, 25));
  const auto save = [&](uint64_t steps, bool ends = false) {
    book.ask(after(steps), ends, ends);
    book.flushed();
    const auto kept = book.begin()->kept_steps;
    book.end(steps, true);
    return kept;
  };
  CHECK(save(10) == std::vector<uint64_t>{10});
  CHECK(book.next_evaluation() == 10);
  CHECK_FALSE(book.next_evaluation());
  CHECK_FALSE(book.holds_for_evaluation(19));
  CHECK(book.holds_for_evaluation(20));
  CHECK(book.runs_in_any_case(20));
  CHECK_FALSE(book.runs_in_any_case(21));
  book.evaluator_died();
  CHECK(book.next_evaluation() == 10);
  CHECK(book.evaluated(with_tau(10, 1.5)) == true);
  CHECK_FALSE(book.holds_for_evaluation(20));
  CHECK((save(20) == std::vector<uint64_t>{20, 10}));
  CHECK(book.holds_for_evaluation(25));  // the last step has one too
  CHECK(book.next_evaluation() == 20);
  book.give_up_evaluation(20);
  CHECK_FALSE(book.awaits_evaluations());
  save(25, true);
  CHECK(book.awaits_evaluations());
}

TEST_CASE("evaluations: patience ends the run with the evaluation after the one that used it up") {
  save_options o;
  o.eval_every = 10;
  o.patience = 2;
  o.total_steps = 100;
  o.evaluations = {with_tau(10, 1.5), with_tau(20, 1.4)};
  CHECK_FALSE(save_book(o).ends_at());
  o.evaluations.push_back(with_tau(30, 1.5));
  CHECK(save_book(o).ends_at() == 40);
  o.total_steps = 40;
  CHECK_FALSE(save_book(o).ends_at());  // it ends there anyway
}

TEST_CASE("evaluations: what is missing at a resume is made first, in order") {
  save_options o;
  o.eval_every = 10;
  o.total_steps = 100;
  o.first_step = 20;
  o.missing = {10, 20};
  save_book book(o);
  CHECK(book.next_evaluation() == 10);
  CHECK(book.holds_for_evaluation(21));
  CHECK_FALSE(book.runs_in_any_case(21));
  book.evaluated(with_tau(10, 1.1));
  CHECK(book.next_evaluation() == 20);
  CHECK_FALSE(book.holds_for_evaluation(21));
}

TEST_CASE("training goes on while a checkpoint is written, and waits when the next one is due") {
  const layout l{.drafters = 2, .steps = 12, .save_every = 4};
  training t(l);
  std::atomic<bool> writing{false};
  std::atomic<int> trained_meanwhile{0};
  latch three_trained;
  t.parts().drafters[0].snapshot = [&](const save_request& r) {
    return [&, r] {
      if (r.steps != 4) return;
      writing = true;
      three_trained.wait();
      writing = false;
    };
  };
  auto work = t.parts().drafters[1].accumulate;
  t.parts().drafters[1].accumulate =
      [&, work](const drafter_input& input, bool measured, const accumulate_watch& watch) {
        if (writing && ++trained_meanwhile == 3) three_trained.open();
        return work(input, measured, watch);
      };
  completes(t);
  CHECK(three_trained.is_open());
  CHECK(at::equal(t.weights(), undisturbed({.drafters = 2, .steps = 12})));

  training again(l);
  again.parts().drafters[0].snapshot = [](const save_request&) {
    return [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  };
  const auto result = again.run();
  CHECK(result.outcome.saves.written == 3);
  CHECK(result.outcome.saves.waited >= 1);
  CHECK(result.outcome.saves.waited_ns > 0);
  CHECK(result.outcome.saves.written_ns >= 3 * 300'000'000LL);
}

TEST_CASE("the death of the checkpointer fails its save alone; the last save is made again") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .steps = 12, .save_every = 3}, folder.path());
  std::atomic<int> writes{0};
  t.parts().restart.first_delay = std::chrono::milliseconds(5);
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    if (actor != "checkpointer" || point != "writes") return;
    const int number = ++writes;
    if (number == 1 || number == 4) throw std::runtime_error("struck");
  };
  const auto result = t.run();
  INFO(result.outcome.reason);
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.saves.failed == 2);
  CHECK(result.outcome.saved_step == 12);
  CHECK(writes == 5);
  CHECK(at::equal(t.weights(), undisturbed({.drafters = 2, .steps = 12})));
  CHECK(find_checkpoint(folder.path() / "checkpoints").state.steps == 12);

  training doomed({.steps = 4});
  doomed.parts().restart.first_delay = std::chrono::milliseconds(5);
  doomed.parts().faults = [](const std::string& actor, std::string_view point) {
    if (actor == "checkpointer" && point == "writes") throw std::runtime_error("struck");
  };
  const auto failed = doomed.run();
  CHECK(failed.outcome.status == run_status::failed);
  CHECK_THAT(failed.outcome.reason, Catch::Contains("struck"));
}

TEST_CASE("a copy that cannot be made is a save that failed") {
  training t({.steps = 6, .save_every = 2});
  t.parts().drafters[0].snapshot = [](const save_request& r) -> std::function<void()> {
    if (r.steps < 6) throw std::bad_alloc();
    return [] {};
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.saves.failed == 2);
}

TEST_CASE("evaluation beside training leaves the weights alone, and its lines are the same") {
  const auto weights = undisturbed({.drafters = 2, .noise = 0.1});
  std::vector<std::string> steps, evaluations;
  for (const int delay : {0, 40}) {
    const test::scratch_folder folder;
    training t({.targets = 2, .drafters = 2, .noise = 0.1}, folder.path());
    std::vector<uint64_t> recorded;
    t.parts().record = [&](const evaluation_record& r) {
      recorded.push_back(r.history->best()->step);
    };
    evaluate_as(
        t,
        6,
        0,
        [](uint64_t step) { return step == 12 ? 1.7 : 1.5; },
        std::chrono::milliseconds(delay));
    std::vector<std::pair<uint64_t, double>> shown;
    t.parts().sinks.push_back({"seen", [&](const metrics_line& line) {
                                 for (const scalar& s : scalars_of(line.json))
                                   if (s.name == "held_out/tau")
                                     shown.emplace_back(line.step, s.value);
                               }});
    const auto result = t.run();
    INFO(result.outcome.reason);
    REQUIRE(result.outcome.status == run_status::completed);
    CHECK(at::equal(t.weights(), weights));
    CHECK(result.outcome.evaluations->best()->step == 12);
    CHECK((shown ==
           std::vector<std::pair<uint64_t, double>>{{6, 1.5}, {12, 1.7}, {18, 1.5}, {20, 1.5}}));
    CHECK((recorded == std::vector<uint64_t>{6, 12, 12, 12}));
    if (delay == 0) {
      steps = lines_of(folder.path(), false);
      evaluations = lines_of(folder.path(), true);
    } else {
      CHECK(result.outcome.eval_waited_ns > 0);
      CHECK(lines_of(folder.path(), false) == steps);
      CHECK(lines_of(folder.path(), true) == evaluations);
    }
  }
  REQUIRE(evaluations.size() == 4);  // 6, 12, 18 and the last step, 20
  CHECK_THAT(evaluations[3], Catch::Contains("\"step\":20"));
  CHECK_THAT(evaluations[1], Catch::Contains("\"best\":true"));
  CHECK(steps.size() == 20);
}

TEST_CASE(
    "without a better evaluation the run ends at one and the same step, however long they take") {
  for (const int delay : {0, 30}) {
    const test::scratch_folder folder;
    training t({.drafters = 1, .steps = 60}, folder.path());
    evaluate_as(
        t,
        5,
        2,
        [](uint64_t step) { return step == 10 ? 1.9 : 1.2; },
        std::chrono::milliseconds(delay));
    const auto result = t.run();
    CHECK(result.outcome.status == run_status::completed);
    CHECK(result.outcome.stopped_early);
    CHECK(result.outcome.steps == 25);  // 15 and 20 were no better
    CHECK(result.outcome.saved_step == 25);
    CHECK(result.outcome.evaluations->all().size() == 5);
    CHECK_THAT(result.outcome.reason, Catch::Contains("step 10"));
    CHECK(find_checkpoint(folder.path() / "checkpoints").state.steps == 25);
    // A checkpoint of the best one stays, though it is not among the newest.
    CHECK(fs::exists(folder.path() / "checkpoints/step-10"));
    CHECK_FALSE(fs::exists(folder.path() / "checkpoints/step-15"));
  }
}

TEST_CASE("an evaluator that dies begins again; one that keeps failing is done without") {
  const auto weights = undisturbed({});
  const test::scratch_folder folder;
  training t({}, folder.path());
  evaluate_as(t, 5, 0, [](uint64_t step) { return 1.0 + static_cast<double>(step); });
  t.parts().restart.first_delay = std::chrono::milliseconds(5);
  std::atomic<int> deaths{0};
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    if (actor == "evaluator" && point == "evaluates" && ++deaths % 3 == 0)
      throw std::runtime_error("struck");
  };
  auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.evaluations->all().size() == 4);
  CHECK(at::equal(t.weights(), weights));
  CHECK(lines_of(folder.path(), true).size() == 4);

  training hopeless({.steps = 20});
  evaluate_as(hopeless, 5, 1, [](uint64_t) { return 1.0; });
  hopeless.parts().restart.first_delay = std::chrono::milliseconds(5);
  hopeless.parts().faults = [](const std::string& actor, std::string_view point) {
    if (actor == "evaluator" && point == "begins") throw std::runtime_error("struck");
  };
  result = hopeless.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.steps == 20);
  CHECK(result.outcome.evaluations->all().empty());
  CHECK(at::equal(hopeless.weights(), weights));
}

TEST_CASE("drafter 0 dies when it is to save what is to be evaluated: it is evaluated",
          "[guarantees]") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .steps = 6}, folder.path());
  evaluate_as(t, 3, 0, [](uint64_t step) { return 1.0 + static_cast<double>(step); });
  t.parts().restart.first_delay = std::chrono::milliseconds(5);
  // Metrics is slow, so that step 4 is reduced before the save is asked for: its go stands ready.
  latch reduced;
  std::atomic<bool> once{true};
  std::atomic<int> written{0}, reductions{0};
  t.parts().faults = [&](const std::string& actor, std::string_view point) {
    if (actor == "metrics" && point == "written" && ++written == 3) reduced.wait();
    if (actor == "drafter_train 0" && point == "reduced" && ++reductions == 4) reduced.open();
    if (actor == "drafter_train 0" && point == "save" && once.exchange(false))
      throw std::runtime_error("struck");
  };
  const auto result = t.run();
  INFO(result.outcome.reason);
  CHECK(result.outcome.status == run_status::completed);
  CHECK_FALSE(once);
  CHECK(result.outcome.saves.failed == 0);
  CHECK(result.outcome.evaluations->all().size() == 2);
  CHECK(lines_of(folder.path(), true).size() == 2);
}

TEST_CASE("the run waits for metrics that dies with the last evaluation, unless it is retired",
          "[guarantees]") {
  for (const bool always : {false, true}) {
    const test::scratch_folder folder;
    training t({}, folder.path());
    evaluate_as(t, 5, 0, [](uint64_t step) { return 1.0 + static_cast<double>(step); });
    t.parts().restart.first_delay = std::chrono::milliseconds(20);
    std::atomic<int> at_figures{0};
    t.parts().faults = [&](const std::string& actor, std::string_view point) {
      if (actor != "metrics" || point != "figures") return;
      const int n = ++at_figures;
      if (n == 4 || (always && n > 4)) throw std::runtime_error("struck");
    };
    const auto result = t.run();
    INFO(result.outcome.reason);
    CHECK(result.outcome.status == run_status::completed);
    CHECK(result.outcome.evaluations->all().size() == 4);
    CHECK(lines_of(folder.path(), true).size() == (always ? 3 : 4));
    CHECK(lines_of(folder.path(), false).size() == 20);
  }
}

TEST_CASE("a checkpoint that cannot be evaluated is named, the others are") {
  training t({.steps = 20});
  evaluate_as(t, 5, 0, [](uint64_t) { return 1.0; });
  auto make = t.parts().evaluate;
  t.parts().evaluate = [make] {
    evaluation_work work = make();
    work.begin = [begin = work.begin](uint64_t steps) {
      if (steps == 10) throw error("damaged", "step-10");
      begin(steps);
    };
    return work;
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.evaluations->all().size() == 3);
}

TEST_CASE("a stop does not wait for an evaluation; it is made when the run goes on") {
  const test::scratch_folder folder;
  latch given_up;
  uint64_t stopped_at = 0;
  {
    training t({.steps = 40}, folder.path());
    evaluate_as(t, 5, 0, [&](uint64_t) -> double {
      given_up.wait();
      throw std::runtime_error("given up");
    });
    t.parts().give_up_evaluation = [&] { given_up.open(); };
    std::function<void()> stop;
    t.parts().on_started = [&](std::function<void()> s) { stop = std::move(s); };
    auto update = t.parts().drafters[0].update;
    t.parts().drafters[0].update = [&, update](
                                       const at::Tensor& g, double w, uint64_t step, bool skip) {
      if (step == 7) stop();
      return update(g, w, step, skip);
    };
    const auto result = t.run();
    CHECK(result.outcome.status == run_status::stopped);
    CHECK(result.outcome.evaluations->all().empty());
    stopped_at = result.outcome.steps;
    CHECK(stopped_at <= 10);
  }
  CHECK(fs::exists(folder.path() / "checkpoints/step-5"));
  training t({.steps = 40}, folder.path());
  evaluate_as(t, 5, 0, [](uint64_t) { return 1.0; });
  t.resume();
  t.parts().saves.missing = {5};
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.evaluations->all().size() == 8);
  CHECK(at::equal(t.weights(), undisturbed({.steps = 40})));
}

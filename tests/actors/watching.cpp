// What can be seen of a running pipeline, and that looking holds nothing up.
#include "tests/actors/training_fixture.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/run_watch.hpp"
#include "actors/runtime/sink_thread.hpp"
#include "config/error.hpp"
#include "tests/actors/latch.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

std::shared_ptr<const metrics_line> line(uint64_t step) {
  return std::make_shared<const metrics_line>(
      metrics_line{step, 0, "{\"loss\":" + std::to_string(step) + ".5}", ""});
}

const sink_view& view_of(const std::vector<sink_view>& views, const std::string& name) {
  for (const sink_view& v : views)
    if (v.name == name) return v;
  throw std::runtime_error("no sink " + name);
}

}  // namespace

TEST_CASE("a sink that blocks until the run has ended slows no step", "[observe]") {
  training plain({.drafters = 2, .steps = 40});
  completes(plain);
  training watched({.drafters = 2, .steps = 40});
  const auto end = std::make_shared<latch>();
  auto& sinks = watched.parts().sinks;
  sinks.push_back(
      {"blocked", [end](const metrics_line&) { end->wait(); }, {}, std::chrono::milliseconds(1)});
  std::atomic<uint64_t> seen{0};
  sinks.push_back({"sound", [&](const metrics_line& m) { seen = m.step; }});
  sinks.push_back({"broken", [](const metrics_line&) { throw std::runtime_error("disk full"); }});
  const auto result = watched.run();
  INFO(result.outcome.reason);
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.steps == 40);
  CHECK(at::equal(plain.weights(), watched.weights()));
  CHECK(view_of(result.sinks, "blocked").written == 0);
  CHECK(view_of(result.sinks, "sound").written == 40);
  CHECK(view_of(result.sinks, "broken").dropped == 40);
  CHECK(seen == 40);
  end->open();
}

TEST_CASE("a queue of a sink is bounded, drops are counted, order is kept", "[observe]") {
  latch begin;
  std::vector<uint64_t> taken;
  sink_thread sink({"slow", [&](const metrics_line& m) {
                      begin.wait();
                      taken.push_back(m.step);
                    }});
  uint64_t accepted = 0;
  for (uint64_t step = 1; step <= sink_thread::queue_limit + 50; ++step)
    accepted += sink.offer(line(step)) ? 1 : 0;
  CHECK(accepted >= sink_thread::queue_limit);
  CHECK(accepted <= sink_thread::queue_limit + 1);  // one may be in service
  begin.open();
  sink.close();
  CHECK(taken.size() == accepted);
  CHECK(std::is_sorted(taken.begin(), taken.end()));
  CHECK(sink.view().dropped == sink_thread::queue_limit + 50 - accepted);
  CHECK_FALSE(sink.offer(line(1)));
}

TEST_CASE("a sink that failed is tried again with the next line", "[observe]") {
  int calls = 0;
  bool finished = false;
  sink_thread sink({"flaky",
                    [&](const metrics_line&) {
                      if (++calls == 1) throw std::runtime_error("once");
                    },
                    [&] { finished = true; }});
  for (uint64_t step = 1; step <= 3; ++step) sink.offer(line(step));
  sink.close();
  CHECK(calls == 3);
  CHECK(finished);
  CHECK(sink.view().written == 2);
  CHECK(sink.view().dropped == 1);
}

TEST_CASE("the watch shows a target that blocks, what it holds and what waits for it",
          "[observe]") {
  training t({.targets = 1, .drafters = 1, .steps = 20});
  const auto blocked = std::make_shared<latch>(), looked = std::make_shared<latch>();
  auto& capture = t.parts().targets[0];
  capture = [inner = capture, blocked, looked](const batch& b) {
    if (b.k == 5) {
      blocked->open();
      looked->wait();
    }
    return inner(b);
  };
  const auto watch = t.parts().watch = std::make_shared<run_watch>(watch_options{"runs/x", 0, 20});
  std::thread looker([&] {
    blocked->wait();
    // Everything downstream of the blocked batch has passed: the drafter waits for it.
    run_view v;
    const auto find = [&](const std::string& name) {
      for (const actor_view& a : v.actors)
        if (a.row.actor == name) return a;
      throw std::runtime_error("no actor " + name);
    };
    do {
      v = watch->view();
    } while (!find("drafter_train 0").row.state.starts_with("waiting for its next batch"));
    CHECK(find("target_forward 0").row.state.starts_with("computing"));
    CHECK(find("target_forward 0").row.held == std::vector<uint64_t>{5});
    CHECK(find("drafter_train 0").row.held.empty());
    CHECK(find("drafter_train 0").row.bytes == 0);
    CHECK(find("drafter_train 0").row.credits >= 1);
    CHECK(find("postprocess 0").row.service_p99.count() > 0);
    CHECK(find("loader").alive);
    CHECK(find("dispatcher").handled > 5);
    looked->open();
  });
  const auto result = t.run();
  looker.join();
  CHECK(result.outcome.status == run_status::completed);
  const run_view v = watch->view();
  CHECK(v.step == 20);
  CHECK(v.curve.size() == 20);
  CHECK(v.curve.back().step == 20);
  CHECK(v.slowest);
  CHECK(v.stages.size() == 5);
  CHECK_FALSE(v.latest.empty());
  for (const actor_view& a : v.actors) {
    INFO(a.row.actor);
    CHECK(a.row.held.empty());
    CHECK(a.wait.count >= a.wait.up_to.back());
    CHECK(a.service.count == a.handled);
  }
}

TEST_CASE("a curve of any length stays short and keeps its whole range", "[observe]") {
  run_watch watch({"runs/x", 0, 100000});
  for (uint64_t step = 1; step <= 5000; ++step) watch.note(*line(step));
  const auto curve = watch.view().curve;
  CHECK(curve.size() < 1024);
  CHECK(curve.size() > 256);
  CHECK(curve.front().step <= 8);
  CHECK(curve.back().step > 4990);
  CHECK(std::is_sorted(
      curve.begin(), curve.end(), [](const auto& a, const auto& b) { return a.step < b.step; }));
}

TEST_CASE("quantiles of a live histogram are right within an eighth", "[observe]") {
  live_histogram h;
  CHECK(h.quantile(0.5) == 0);
  for (int64_t i = 1; i <= 1000; ++i) h.add(i * 1000);
  h.add(-5);
  CHECK(h.count() == 1001);
  CHECK(static_cast<double>(h.quantile(0.5)) == Approx(500e3).epsilon(1.0 / 8));
  CHECK(static_cast<double>(h.quantile(0.99)) == Approx(990e3).epsilon(1.0 / 8));
  CHECK(static_cast<double>(h.count_to(100'000)) == Approx(101).epsilon(1.0 / 8));
  const live_histogram copy(h);
  CHECK(copy.count() == 1001);
}

TEST_CASE("names of actors are a kind and an index", "[observe]") {
  CHECK(split_name("target_forward 12").kind == "target_forward");
  CHECK(split_name("target_forward 12").index == 12);
  CHECK(split_name("loader").kind == "loader");
  CHECK(split_name("odd name").kind == "odd name");
  CHECK(split_name("x ").kind == "x ");
}

TEST_CASE("lines of metrics say what each lane waited for and what it could do", "[observe]") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .steps = 20}, folder.path());
  t.parts().metrics_every = 1;
  t.parts().target_flops = 100;
  t.parts().drafter_flops = 10;
  t.parts().peak_flops = 1e6;
  completes(t);
  std::ifstream in(folder.path() / "metrics.jsonl");
  std::string text;
  while (std::getline(in, text)) {
    const auto scalars = scalars_of(text);
    const auto has = [&](const std::string& name) {
      return std::any_of(
          scalars.begin(), scalars.end(), [&](const scalar& s) { return s.name == name; });
    };
    for (const char* name : {"loss",
                             "ce",
                             "grad_norm",
                             "update_norm",
                             "lr",
                             "skipped",
                             "acc",
                             "acc_at/1",
                             "top4",
                             "top8",
                             "streak",
                             "accept_len",
                             "eal",
                             "time/tokens_per_s",
                             "time/anchors_per_s",
                             "time/waits/targets/job",
                             "time/waits/targets/slot",
                             "time/waits/drafters/batch",
                             "time/waits/drafters/peers",
                             "time/waits/drafters/commit",
                             "time/bytes_in_flight",
                             "time/moved_bytes",
                             "time/saved_bytes",
                             "time/flops_per_s",
                             "time/mfu"}) {
      INFO(name << " in " << text);
      CHECK(has(name));
    }
  }
}

TEST_CASE("the inspector is found by its name while the run lasts", "[observe]") {
  training t({.steps = 5});
  pipeline_system_config config(false);
  caf::actor_system system(config);
  inspector_actor published;
  t.parts().publish = [&](const run_inspector_actor& inspector) { published = inspector; };
  bool found = false;
  t.parts().on_started = [&](const std::function<void()>&) {
    const auto named = system.registry().get(caf::atom("inspector"));
    found = named && named == caf::actor_cast<caf::strong_actor_ptr>(published);
  };
  const auto result = run_pipeline(system, t.parts());
  CHECK(result.outcome.status == run_status::completed);
  CHECK(found);
  CHECK_FALSE(system.registry().get(caf::atom("inspector")));
}

TEST_CASE("settings of CAF are taken, and unknown or wrong ones refused", "[observe]") {
  const pipeline_system_config config(false, {"scheduler.max-threads=3"});
  CHECK(caf::get_or(config, "scheduler.max-threads", uint64_t{0}) == 3);
  CHECK_THROWS_AS(pipeline_system_config(false, {"no.such=1"}), error);
  CHECK_THROWS_AS(pipeline_system_config(false, {"scheduler.max-threads=many"}), error);
}

// `inspect` from another node, of a system that is busy, stuck and half dead.
#include "tests/actors/training_fixture.hpp"

#include <atomic>
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "tests/actors/latch.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

// Another process, but for the process.
class other_node {
public:
  explicit other_node(uint16_t port) : config_(true), system_(config_), self_(system_) {
    const auto found = system_.middleman().remote_actor<inspector_actor>("127.0.0.1", port);
    if (!found) throw std::runtime_error("no connection: " + system_.render(found.error()));
    inspector_ = *found;
  }
  template <class Answer, class Question>
  Answer ask(Question question) {
    Answer answer;
    self_->request(inspector_, caf::duration{std::chrono::seconds(20)}, question)
        .receive([&](const Answer& a) { answer = a; },
                 [&](const caf::error& e) { throw std::runtime_error(system_.render(e)); });
    return answer;
  }
  bool finds_it_by_name() {
    const auto named = system_.middleman().remote_lookup(caf::atom("inspector"), inspector_.node());
    return named && named == caf::actor_cast<caf::strong_actor_ptr>(inspector_);
  }

private:
  pipeline_system_config config_;
  caf::actor_system system_;
  caf::scoped_actor self_;
  inspector_actor inspector_;
};

const mailbox_report& row_of(const system_report& report, const std::string& actor) {
  for (const mailbox_report& row : report.rows)
    if (row.actor == actor) return row;
  throw std::runtime_error("no row of " + actor);
}

}  // namespace

TEST_CASE("another node sees who computes, who is stuck, who waits for them and who is dead",
          "[observe]") {
  training t({.targets = 1, .drafters = 1, .steps = 20});
  const auto busy = std::make_shared<latch>(), looked = std::make_shared<latch>();
  auto& capture = t.parts().targets[0];
  capture = [inner = capture, busy, looked](const batch& b) {
    if (b.k == 5) {
      busy->open();
      looked->wait();
    }
    return inner(b);
  };
  // Metrics never lives long; the dispatcher is stuck in the first message after batch 5 is begun.
  t.parts().restart.max_failures = 1;
  std::atomic<bool> stuck{false};
  t.parts().faults = [&, looked](const std::string& actor, std::string_view point) {
    if (actor == "metrics") throw std::runtime_error("metrics fails");
    if (actor == "dispatcher" && point == "message" && stuck) looked->wait();
  };
  pipeline_system_config config(true);
  caf::actor_system system(config);
  std::promise<uint16_t> published;
  inspector_actor inspector;
  t.parts().publish = [&](const inspector_actor& actor) { inspector = actor; };
  t.parts().on_started = [&](const std::function<void()>&) {
    const auto port = system.middleman().publish(inspector, 0, "127.0.0.1");
    published.set_value(port ? *port : 0);
  };
  dispatcher_actor dispatcher;
  t.parts().on_links = [&, first = true](const auto& links) mutable {
    if (std::exchange(first, false)) dispatcher = links->dispatcher;
  };
  std::string problem, dump;
  std::thread looker([&] {
    const uint16_t port = published.get_future().get();
    busy->wait();
    stuck = true;
    caf::anon_send(dispatcher, describe_atom_v);  // a message to be stuck in
    try {
      other_node node(port);
      system_report report;
      const auto state = [&](const char* actor) { return row_of(report, actor).state; };
      do {
        report = node.ask<system_report>(inspect_atom_v);
      } while (state("dispatcher") != "computing" ||
               state("drafter_train 0") != activity_text(activity::wants_batch) ||
               state("metrics") != activity_text(activity::retired));
      CHECK(state("target_forward 0") == "computing");
      CHECK(row_of(report, "target_forward 0").held == std::vector<uint64_t>{5});
      CHECK(row_of(report, "metrics").handled < row_of(report, "dispatcher").handled);
      dump = node.ask<std::string>(dump_atom_v);
      CHECK(node.finds_it_by_name());
    } catch (const std::exception& e) {
      problem = e.what();
    }
    looked->open();
  });
  const auto result = run_pipeline(system, t.parts());
  looker.join();
  CHECK(problem.empty());
  INFO(problem << result.outcome.reason);
  CHECK(result.outcome.status == run_status::completed);
  CHECK(dump.find("no answer, it is stuck") != std::string::npos);
}

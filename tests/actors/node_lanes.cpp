#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "actors/lent_work.hpp"
#include "actors/node.hpp"
#include "actors/pipeline.hpp"
#include "actors/remote_work.hpp"
#include "actors/runtime/node_directory.hpp"

namespace dflash {

namespace {

using std::chrono::milliseconds;

network_settings quick() {
  network_settings n;
  n.heartbeat = milliseconds(100);
  n.timeout = milliseconds(1000);
  return n;
}

node_greeting greeting(const std::string& name, const std::string& version = "1") {
  node_greeting g;
  g.version = version;
  g.agreement = "same";
  g.name = name;
  g.lanes = {"cpu:0"};
  return g;
}

constexpr hidden_shape shape{3, 2, 1, false, at::kFloat};

// A host of its own, by an actor system of its own.
struct host {
  pipeline_system_config config{quick()};
  caf::actor_system system{config};
};

struct node_host : host {
  explicit node_host(const std::string& version = "1", lane_maker make = captures()) {
    node_options o;
    o.self = greeting("n", version);
    o.data = {"127.0.0.1", 0};
    o.network = quick();
    o.make = [this, make = std::move(make)](const lend_request& request) {
      wire_session session = make(request);
      session.answer = [this, answer = std::move(session.answer)](wire_message m) {
        {
          const std::lock_guard guard(mutex);
          ++calls[m.method];
        }
        return answer(std::move(m));
      };
      return session;
    };
    registry = std::make_shared<mailbox_registry>();
    node = spawn_node(system, identify(registry, "node"), std::move(o));
    address = publish_actor(node, {"127.0.0.1", 0}, quick(), "here");
  }
  ~node_host() { caf::anon_send_exit(node, caf::exit_reason::user_shutdown); }

  static lane_maker captures() {
    return [](const lend_request&) {
      auto answers = lent_target([](const batch& b) {
        return std::vector<at::Tensor>{at::full({3, 2}, static_cast<double>(b.k))};
      });
      return wire_session{std::move(answers)};
    };
  }

  int asked(const std::string& method) {
    const std::lock_guard guard(mutex);
    return calls[method];
  }

  std::mutex mutex;
  std::map<std::string, int> calls;
  std::shared_ptr<mailbox_registry> registry;
  node_actor node;
  wire_address address;
};

std::shared_ptr<remote_lane> lane_of(host& run, const node_host& node, std::string lane = "cpu:0") {
  const auto nodes = std::make_shared<node_directory>();
  nodes->add("n", {node.address, {}});
  remote_lane_options o;
  o.system = &run.system;
  o.network = quick();
  o.nodes = nodes;
  o.self = greeting("run");
  o.node = "n";
  o.lane = std::move(lane);
  o.purpose = "target";
  return std::make_shared<remote_lane>(std::move(o));
}

batch batch_of(uint64_t k) {
  batch b;
  b.k = k;
  b.input_ids = {1, 2, 3};
  b.doc_offsets = {0, 3};
  b.loss_mask = {1, 1, 1};
  return b;
}

}  // namespace

TEST_CASE("a lane that is lent computes as one that is here, and is free afterwards", "[nodes]") {
  node_host node;
  host run;
  auto lane = lane_of(run, node);
  CHECK(lane->place()->text() == "n/cpu:0, not connected");
  {
    const capture_function capture = remote_capture(lane, shape, false);
    for (const uint64_t k : {uint64_t{3}, uint64_t{4}}) {
      const auto tensors = capture(batch_of(k));
      REQUIRE(tensors.size() == 1);
      CHECK(tensors[0].equal(at::full({3, 2}, static_cast<double>(k))));
    }
    CHECK(lane->place()->text() == "n/cpu:0, answers");
    // To one at a time.
    auto second = lane_of(run, node);
    CHECK_THROWS_WITH(second->connect(), Catch::Contains("has lent cpu:0"));
    CHECK(second->place()->text() == "n/cpu:0, DOES NOT ANSWER");
    CHECK_THROWS_WITH(lane_of(run, node, "cpu:1")->connect(), Catch::Contains("no lane cpu:1"));
  }
  lane->close();
  auto next = lane_of(run, node);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  bool free = false;
  while (!free && std::chrono::steady_clock::now() < until) {
    try {
      next->connect();
      free = true;
    } catch (const std::runtime_error&) {
      std::this_thread::yield();
    }
  }
  CHECK(free);
}

TEST_CASE("the gradient of a drafter elsewhere comes over in buckets, or stays there", "[nodes]") {
  const at::Tensor gradient = at::arange(11, at::TensorOptions().dtype(at::kFloat));
  std::vector<at::Tensor> used;
  drafter_work work;
  work.accumulate = [](const drafter_input&, bool, const accumulate_watch&) {
    step_sums sums;
    sums.weight_sum = 3;
    return sums;
  };
  work.gradient = [&]() -> const at::Tensor& { return gradient; };
  work.update = [&](const at::Tensor& reduced, double, uint64_t, bool) {
    used.push_back(reduced.clone());
    return update_report{};
  };
  work.load_state = [](const replica_state&) {};
  const batch b = batch_of(1);
  drafter_input input;
  input.tokens = &b;
  for (const bool alone : {false, true}) {
    CAPTURE(alone);
    node_host node("1", [&](const lend_request&) { return wire_session{lent_drafter(work)}; });
    host run;
    remote_drafter_options o;
    const auto lane = o.lane = lane_of(run, node);
    o.parameters = 11;
    o.bucket = 4;
    o.alone = alone;
    const drafter_work here = remote_drafter(std::move(o));
    here.load_state({});
    CHECK(here.accumulate(input, false, {}).weight_sum == 3);
    const at::Tensor got = here.gradient();
    CHECK(got.equal(gradient) == !alone);
    CHECK(node.asked("gradient") == (alone ? 0 : 3));
    here.update(got, 3, 0, false);
    CHECK(used.back().equal(gradient));
    if (alone) continue;
    // Another sum than the lane's own part travels.
    here.accumulate(input, false, {});
    here.update(here.gradient() * 2, 6, 1, false);
    CHECK(used.back().equal(gradient * 2));
    // A gradient of another size than this run has.
    remote_drafter_options wrong;
    wrong.lane = lane;
    wrong.parameters = 12;
    CHECK_THROWS_WITH(remote_drafter(std::move(wrong)).gradient(),
                      Catch::Contains("a range outside"));
  }
}

TEST_CASE("what a lane answers is checked before it is used", "[nodes]") {
  node_host node;
  host run;
  const auto lane = lane_of(run, node);
  hidden_shape other = shape;
  other.row_tokens = 4;
  CHECK_THROWS_WITH(remote_capture(lane, other, false)(batch_of(1)), Catch::Contains("instead of"));
}

TEST_CASE("a node of another version is refused, and both versions are named", "[nodes]") {
  node_host node("2");
  host run;
  CHECK_THROWS_WITH(lane_of(run, node)->connect(),
                    Catch::Contains("dflash 1 ") && Catch::Contains("dflash 2 "));
}

TEST_CASE("a node that is gone is an error that names it", "[nodes]") {
  host run;
  std::shared_ptr<remote_lane> lane;
  {
    node_host node;
    lane = lane_of(run, node);
    lane->connect();
  }
  CHECK_THROWS_WITH(remote_capture(lane, shape, false)(batch_of(1)), Catch::Contains("n/cpu:0"));
  CHECK(lane->place()->text() == "n/cpu:0, DOES NOT ANSWER");
}

}  // namespace dflash

// A drafter's lane that is lent: what it answers while it computes.
#include "actors/lent_work.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>

#include "actors/lane_protocol.hpp"
#include "latch.hpp"

namespace dflash {

namespace {

using pipeline_test::latch;

constexpr int64_t parameters = 12;

// Its backward pass stops before its second half until it may go on.
struct stepwise_drafter {
  latch second_half;
  std::atomic<bool> pass_is_over{false};
  std::string fault;  // where to throw: "forward", "backward"
  at::Tensor gradient = at::zeros({parameters});

  drafter_work work() {
    drafter_work w;
    w.accumulate = [this](const drafter_input& input, bool, const accumulate_watch& watch) {
      pass_is_over = false;
      step_sums sums;
      sums.weight_sum = static_cast<double>(input.tokens->k);
      if (fault == "forward") throw std::runtime_error("a fault in the forward pass");
      watch.summed(sums);
      fill(6, 12);
      watch.final_from(gradient, 6);
      second_half.wait();
      if (fault == "backward") throw std::runtime_error("a fault in the backward pass");
      fill(0, 6);
      watch.final_from(gradient, 0);
      pass_is_over = true;
      return sums;
    };
    w.gradient = [this]() -> const at::Tensor& { return gradient; };
    w.update = [this](const at::Tensor&, double, uint64_t, bool) {
      update_report report;
      report.grad_norm = pass_is_over ? 1 : 0;
      return report;
    };
    w.state = [this] { return replica_state{{{"master", gradient}}, pass_is_over ? 1U : 0U}; };
    w.load_state = [this](const replica_state&) { gradient.zero_(); };
    return w;
  }

  void fill(int64_t begin, int64_t end) {
    gradient.narrow(0, begin, end - begin)
        .copy_(at::arange(begin, end, at::TensorOptions().dtype(at::kFloat)));
  }
};

wire_message accumulate_call(uint64_t k) {
  batch b;
  b.k = k;
  b.input_ids = {1, 2, 3};
  b.doc_offsets = {0, 3};
  b.loss_mask = {1, 1, 1};
  // The message looks into the batch, so its tensors are copied.
  wire_message m = encode_accumulate(b, {}, false, false);
  for (at::Tensor& t : m.tensors) t = t.clone();
  return m;
}

wire_message range_call(int64_t begin, int64_t count) {
  return {lane_call::gradient, encode_range({begin, count}), {}};
}

at::Tensor numbers(int64_t begin, int64_t end) {
  return at::arange(begin, end, at::TensorOptions().dtype(at::kFloat));
}

wire_message load_call() {
  wire_message m = encode_state({});
  m.method = lane_call::load;
  return m;
}

}  // namespace

TEST_CASE("a lent drafter answers after its forward pass, and gives what is final of the gradient",
          "[nodes]") {
  stepwise_drafter drafter;
  const lane_answers ask = lent_drafter(drafter.work());
  CHECK_THROWS_WITH(ask(accumulate_call(1)), Catch::Contains("no state"));
  ask(load_call());
  CHECK(ask(range_call(0, parameters)).tensors.at(0).equal(at::zeros({parameters})));

  CHECK(decode_sums(ask(accumulate_call(5)).body).weight_sum == 5);
  CHECK(ask(range_call(9, 3)).tensors.at(0).equal(numbers(9, 12)));
  CHECK(ask(range_call(6, 3)).tensors.at(0).equal(numbers(6, 9)));
  CHECK_FALSE(drafter.pass_is_over);
  drafter.second_half.open();
  CHECK(ask(range_call(0, 6)).tensors.at(0).equal(numbers(0, 6)));
  // Everything else waits for the end of the pass.
  CHECK(decode_report(ask({lane_call::update, encode_update({5, 0, false, true}), {}}).body)
            .grad_norm == 1);
  ask(accumulate_call(6));
  CHECK(decode_state(ask({lane_call::state, {}, {}})).updates == 1);
  ask(accumulate_call(7));
  CHECK(decode_sums(ask(accumulate_call(8)).body).weight_sum == 8);
  CHECK_THROWS_WITH(ask(range_call(6, 7)), Catch::Contains("outside"));
  CHECK_THROWS_WITH(ask({lane_call::update, encode_update({5, 0, false, false}), {numbers(0, 11)}}),
                    Catch::Contains("another shape"));
}

TEST_CASE("a fault in a lent drafter is told by the call that it spoils", "[nodes]") {
  stepwise_drafter drafter;
  drafter.second_half.open();
  const lane_answers ask = lent_drafter(drafter.work());
  ask(load_call());
  drafter.fault = "forward";
  CHECK_THROWS_WITH(ask(accumulate_call(1)), Catch::Contains("forward pass"));
  CHECK(ask(range_call(0, 6)).tensors.at(0).equal(at::zeros({6})));
  drafter.fault = "backward";
  for (const auto& next : {range_call(0, 6),
                           wire_message{lane_call::update, encode_update({1, 0, false, true}), {}},
                           wire_message{lane_call::state, {}, {}},
                           accumulate_call(2)}) {
    CAPTURE(next.method);
    ask(load_call());  // forgets what has failed
    ask(accumulate_call(1));
    CHECK_THROWS_WITH(ask(next), Catch::Contains("backward pass"));
    CHECK_THROWS_WITH(ask(range_call(6, 6)), Catch::Contains("backward pass"));
  }
  drafter.fault.clear();
  ask(load_call());
  ask(accumulate_call(3));
  CHECK(ask(range_call(0, parameters)).tensors.at(0).equal(numbers(0, parameters)));
}

TEST_CASE("a lent drafter that goes away ends what it computes first", "[nodes]") {
  stepwise_drafter drafter;
  drafter.second_half.open();
  {
    const lane_answers ask = lent_drafter(drafter.work());
    ask(load_call());
    ask(accumulate_call(1));
  }
  CHECK(drafter.pass_is_over);
}

}  // namespace dflash

// The whole pipeline with its lanes on other devices: the same training as on the CPU, and every
// hand-over in an order that the streams promise.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <array>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/actors/fault_fixture.hpp"
#include "tests/twin/twin_device.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;
using namespace dflash::test;

namespace {

// One of each state of the run in host memory.
std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& t : tensors) all.push_back(t.to(at::kCPU));
  return all;
}

void no_faults() {
  for (const std::string& fault : twins().faults) FAIL_CHECK(fault);
}

// Targets on twins 0 and 1, drafters on 1 (shared) and 2.
layout on_twins(uint32_t targets, uint32_t drafters) {
  layout l{.targets = targets, .drafters = drafters, .noise = 0.1, .kl = true};
  for (uint32_t i = 0; i < targets; ++i)
    l.target_devices.push_back(twin(static_cast<c10::DeviceIndex>(i % 2)));
  for (uint32_t i = 0; i < drafters; ++i)
    l.drafter_devices.push_back(twin(static_cast<c10::DeviceIndex>(1 + i % 2)));
  return l;
}

}  // namespace

TEST_CASE("lanes on devices train as lanes on the CPU, and every hand-over is in order", "[twin]") {
  for (const uint32_t drafters : {1U, 2U, 3U}) {
    layout l = on_twins(1, drafters);
    l.target_devices.clear();
    l.drafter_devices.clear();
    training plain(l);
    completes(plain);
    std::vector<at::Tensor> first;
    for (const uint32_t targets : {1U, 2U, 3U}) {
      CAPTURE(drafters, targets);
      reset_twins();
      {
        training t(on_twins(targets, drafters));
        const uint64_t before = twins().host_waits;
        completes(t);
        const uint64_t waits = twins().host_waits - before;
        for (uint32_t i = 0; i < drafters; ++i) {
          const auto state = on_host(state_copy(t.trainer(i)));
          if (first.empty()) first = state;
          CHECK(same_bits(state, first));
        }
        CHECK(at::allclose(t.weights().to(at::kCPU), plain.weights(), 1e-3, 1e-4));
        // The host waits: once a hand-over (is it finite), four times a step and drafter (loss,
        // sum, norms of gradient and update), and for each tensor of the last checkpoint.
        const uint64_t batches = t.parts().plan->total_batches();
        CHECK(waits <= batches + 4 * 20 * drafters + 100);
      }
      no_faults();
    }
  }
}

TEST_CASE("targets and drafters may be on different kinds of devices", "[twin]") {
  for (const bool targets_there : {true, false}) {
    CAPTURE(targets_there);
    layout l = on_twins(2, 2);
    (targets_there ? l.drafter_devices : l.target_devices).clear();
    reset_twins();
    std::vector<at::Tensor> weights;
    {
      training t(l);
      completes(t);
      for (const size_t i : {0, 1}) weights.push_back(t.weights(i).to(at::kCPU));
    }
    CHECK(at::equal(weights[0], weights[1]));
    layout here = l;
    here.target_devices.clear();
    here.drafter_devices.clear();
    training plain(here);
    completes(plain);
    CHECK(at::allclose(weights[0], plain.weights(), 1e-3, 1e-4));
    no_faults();
  }
}

TEST_CASE("the checker of streams sees a hand-over without its mark", "[twin]") {
  for (const bool marked : {true, false}) {
    reset_twins();
    const at::Tensor made = at::empty({4}, at::TensorOptions().device(twin(0)));
    std::thread([&] {
      use_devices(std::array{twin(0)});
      made.fill_(1);
      const ready_event ready = mark(twin(0));
      std::thread([&] {
        use_devices(std::array{twin(0)});
        if (marked) ready.wait();
        at::Tensor read = made + 1;
        wait_for(twin(0));
      }).join();
      wait_for(twin(0));
    }).join();
    CHECK(twins().faults.empty() == marked);
  }
}

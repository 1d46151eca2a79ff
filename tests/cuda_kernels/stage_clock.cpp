// The clock of stages on a device: spans in order, without gaps, by the host's clock.
#include "device/cuda/stage_clock.hpp"

#include <cuda_runtime_api.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "tests/cuda_kernels/has_device.hpp"

namespace dflash::cuda {

namespace {

int64_t host_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

TEST_CASE("stages of a stream have the device's times, by the host's clock") {
  if (!has_device()) return;
  stage_timer timer;
  const int64_t before = host_ns();
  timer.use(make_stage_clock());
  timer.turn_on();
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 1 << 26) == cudaSuccess);
  std::vector<stage_span> spans;
  for (int batch = 0; batch < 3; ++batch) {
    {
      const auto scope = timer.within("batch");
      for (int i = 0; i < 100; ++i) REQUIRE(cudaMemsetAsync(memory, i, 1 << 26) == cudaSuccess);
      timer.mark("fill");
    }
    for (const stage_span& s : timer.take())
      spans.push_back(s);  // what has passed, without waiting
  }
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const int64_t after = host_ns();
  for (const stage_span& s : timer.take()) spans.push_back(s);
  REQUIRE(spans.size() == 6);
  constexpr int64_t slack_ns = 1'000'000;  // between the two clocks
  for (size_t i = 0; i < spans.size(); i += 2) {
    CHECK(spans[i].begin_ns == spans[i + 1].begin_ns);
    CHECK(spans[i].end_ns > spans[i].begin_ns);
    CHECK(spans[i].end_ns <= spans[i + 1].end_ns);
    if (i > 0) CHECK(spans[i].begin_ns >= spans[i - 1].end_ns);
  }
  CHECK(spans.front().begin_ns >= before - slack_ns);
  CHECK(spans.back().end_ns <= after + slack_ns);
  REQUIRE(cudaFree(memory) == cudaSuccess);
}

}  // namespace dflash::cuda

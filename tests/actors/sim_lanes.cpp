// The real actors on lanes that only sleep: mailbox limits hold in every layout, and no byte of
// what they count is touched.
#include "actors/sim_lanes.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <utility>

#include "actors/pipeline.hpp"

using namespace dflash;

namespace {

constexpr hidden_shape reference{49152, 5120, 5, true, at::kBFloat16};

int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6)) * 1024;
  return -1;
}

pipeline_parts parts_of(uint32_t targets, uint32_t drafters, int64_t steps, uint64_t budget) {
  token_documents text;
  for (int d = 0; d < 8; ++d) text.append(std::vector<int32_t>(32, 5), std::vector<uint8_t>(32, 1));
  pipeline_parts p;
  p.source = std::make_shared<const batch_source>(token_set(text), 32, 4, 1);
  p.plan.emplace(p.source->rows(), 1, drafters, 1, steps);
  p.shape = reference;
  p.drafter_dtype = reference.dtype;
  p.limits = derive_limits(targets, 0, drafters, p.shape.bytes(), budget);
  p.block_size = 16;
  p.metrics_every = 1 << 30;
  p.progress = false;
  constexpr double mean = 0.0005;
  sim_times times = sim_times_of(service_law::exponential, 1);
  times.target.seconds = times.drafter.seconds = mean;
  times.postprocess.seconds = mean / 5;
  times.reduction.seconds = times.update.seconds = mean / 20;
  add_sim_lanes(p, times);
  return p;
}

}  // namespace

TEST_CASE("bytes in flight stay within the limits in every layout, with service times at random") {
  struct layout {
    uint32_t targets, drafters;
    uint64_t budget_batches;  // 0: the default limits
  };
  for (const layout l : {layout{1, 1, 0},
                         {1, 3, 0},
                         {5, 1, 0},
                         {5, 3, 0},
                         {7, 2, 0},
                         {5, 3, 8},
                         {7, 2, 9},
                         {40, 24, 0}}) {
    INFO(l.targets << " targets, " << l.drafters << " drafters, budget " << l.budget_batches);
    const int64_t before = resident_bytes();
    auto p = parts_of(l.targets, l.drafters, 60, l.budget_batches * reference.bytes());
    pipeline_system_config config(false);
    caf::actor_system system(config);
    const pipeline_result result = run_pipeline(system, p);
    INFO(result.outcome.reason);
    REQUIRE(result.outcome.status == run_status::completed);
    CHECK(result.outcome.steps == 60);
    uint64_t peak = 0;
    for (const mailbox_report& m : result.mailboxes) {
      INFO(m.actor);
      CHECK(m.refused == 0);
      CHECK(m.bytes == 0);
      if (m.limit_bytes > 0) CHECK(m.peak_bytes <= m.limit_bytes);
      peak += m.peak_bytes;
    }
    CHECK(peak <= p.limits.total_bytes());
    CHECK(peak >= reference.bytes());
    CHECK(resident_bytes() - before < 256'000'000);  // 3 GB a batch are counted, none is touched
  }
}

TEST_CASE("service times are constant, or drawn with the mean asked for") {
  const service_time fixed{0.25, service_law::constant, 1};
  CHECK(fixed.of(0) == 0.25);
  CHECK(fixed.of(77) == 0.25);
  const auto moments = [](const service_time& drawn) {
    double sum = 0, squares = 0;
    constexpr int n = 20000;
    for (int k = 0; k < n; ++k) {
      const double t = drawn.of(static_cast<uint64_t>(k));
      CHECK(t >= 0);
      sum += t;
      squares += t * t;
    }
    return std::pair(sum / n, squares / n - sum / n * sum / n);
  };
  const service_time drawn{0.25, service_law::exponential, 1};
  const auto [mean, variance] = moments(drawn);
  CHECK(mean == Approx(0.25).epsilon(0.03));  // 4 standard errors
  CHECK(variance == Approx(0.0625).epsilon(0.1));
  CHECK(drawn.of(5) == drawn.of(5));
  CHECK(drawn.of(5) != drawn.of(6));
  const service_time even{0.25, service_law::uniform, 1, 0.6};
  const auto [even_mean, even_variance] = moments(even);
  CHECK(even_mean == Approx(0.25).epsilon(0.01));
  CHECK(even_variance == Approx(0.15 * 0.15 / 3).epsilon(0.05));  // of half width 0.15
  for (uint64_t k = 0; k < 1000; ++k) CHECK((even.of(k) >= 0.1 && even.of(k) < 0.4));
}

TEST_CASE("the times of one batch are drawn apart from each other") {
  sim_times t = sim_times_of(service_law::exponential, 1);
  t.target.seconds = t.postprocess.seconds = t.drafter.seconds = 1;
  CHECK(t.target.of(3) != t.postprocess.of(3));
  CHECK(t.target.of(3) != t.drafter.of(3));
}

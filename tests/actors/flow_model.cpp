// The flow of batches from service times alone: against closed forms, and against the real actors
// on simulated lanes.
#include "actors/flow_model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "actors/pipeline.hpp"
#include "actors/sim_lanes.hpp"

using namespace dflash;

namespace {

struct stage_seconds {
  double target, postprocess, drafter, reduction, update;
};

flow_times constant(const stage_seconds& t) {
  const auto always = [](double seconds) { return [seconds](uint64_t) { return seconds; }; };
  return {always(t.target),
          always(t.postprocess),
          always(t.drafter),
          always(t.reduction),
          always(t.update)};
}

flow_layout default_layout(uint32_t targets, uint32_t drafters) {
  const pipeline_limits l = derive_limits(targets, 0, drafters, 1, 0);
  return {targets, drafters, l.drafter_batches, l.capture_slots};
}

}  // namespace

TEST_CASE("with constant times the default limits reach what the slowest stage allows") {
  constexpr uint32_t layouts[][2] = {{1, 1}, {1, 3}, {5, 1}, {5, 3}, {7, 2}, {40, 24}};
  for (const auto [targets, drafters] : layouts)
    for (const double want : {1.4, 1.0, 1 / 1.4})  // drafters' rate, of the targets'
      for (const double postprocess : {0.0, 0.2})
        for (const int64_t accumulation : {1, 3}) {
          INFO(targets << " + " << drafters << ", drafters x " << want << ", postprocess "
                       << postprocess << ", accumulation " << accumulation);
          const double step = static_cast<double>(drafters * accumulation) / (targets * want);
          const double batch = 0.9 * step / static_cast<double>(accumulation);
          const stage_seconds t{1, postprocess, batch, drafters > 1 ? 0.04 * step : 0, 0.0};
          stage_seconds u = t;
          u.update = step - batch * static_cast<double>(accumulation) - t.reduction;
          const int64_t group = drafters * accumulation;
          const step_plan plan(20 * group, 100, drafters, accumulation, 0);
          const flow_layout layout = default_layout(targets, drafters);
          const flow_bounds bounds = bounds_of(plan, layout, constant(u), 1000);
          CHECK(bounds.targets == Approx(targets).epsilon(1e-9));
          if (postprocess > 0) CHECK(bounds.postprocess == Approx(targets / postprocess));
          CHECK(bounds.drafters == Approx(targets * want).epsilon(1e-9));
          const flow_forecast f = flow(plan, layout, constant(u), 1000);
          // Above 1: what was made ahead while the pipeline filled, of 800 steps. The least is 5 +
          // 1, balanced, with accumulation.
          CHECK(f.batches_per_s / bounds.least() > (accumulation == 1 ? 0.9995 : 0.994));
          CHECK(f.batches_per_s / bounds.least() < 1.01);
        }
}

TEST_CASE("less room than the default costs throughput, one batch per drafter most") {
  const step_plan plan(60, 100, 3, 1, 0);
  const auto times = constant({1, 0.2, 0.54, 0, 0.06});
  double before = 0;
  for (const uint32_t batches : {1, 2, 3, 4}) {
    const double rate = flow(plan, {5, 3, batches, 2}, times, 500).batches_per_s;
    INFO(batches);
    CHECK(rate >= before);
    before = rate;
  }
  CHECK(flow(plan, {5, 3, 1, 2}, times, 500).batches_per_s < 0.75 * before);
  CHECK(before == Approx(5.0).epsilon(0.001));
}

TEST_CASE("a postprocess slower than its target holds room for two batches a target") {
  const step_plan plan(60, 100, 1, 1, 0);
  const auto times = constant({1, 1.3, 0.15, 0, 0.02});
  const double bound = bounds_of(plan, {5, 1, 3, 2}, times, 500).least();
  CHECK(bound == Approx(5 / 1.3));
  CHECK(flow(plan, default_layout(5, 1), times, 500).batches_per_s < 0.8 * bound);
  CHECK(flow(plan, {5, 1, 2 * 5 + 2, 2}, times, 500).batches_per_s > 0.995 * bound);
}

TEST_CASE("steps that are not full take as long as full ones") {
  const step_plan plan(64, 100, 3, 1, 0);  // 21 steps of 3 batches and one of 1 an epoch
  const auto times = constant({0.1, 0, 0.9, 0, 0.1});
  const flow_bounds bounds = bounds_of(plan, default_layout(1, 3), times, 22 * 50);
  CHECK(bounds.drafters == Approx(64.0 / 22.0).epsilon(0.001));
  CHECK(bounds.limit() == flow_limit::drafters);
}

TEST_CASE("one drafter reduces nothing, and a stage that takes no time is no limit") {
  const step_plan plan(60, 100, 1, 1, 0);
  const auto times = constant({1, 0, 0.5, 7, 0.1});
  const flow_bounds bounds = bounds_of(plan, default_layout(1, 1), times, 500);
  CHECK(bounds.drafters == Approx(1 / 0.6));
  CHECK(bounds.targets == Approx(1.0));
  CHECK(bounds.postprocess > 1e300);
  CHECK(bounds.limit() == flow_limit::targets);
}

TEST_CASE("random times lose what the barrier of a step costs") {
  const step_plan plan(60, 1000, 3, 1, 0);
  sim_times sim = sim_times_of(service_law::exponential, 5);
  sim.drafter.seconds = 1;
  const auto times = flow_times_of(sim);
  // Of three exponential times the largest is 1 + 1/2 + 1/3 means on average.
  CHECK(bounds_of(plan, default_layout(1, 3), times, 20000).drafters ==
        Approx(3 / (11.0 / 6)).epsilon(0.03));  // 4 standard errors of 16,000 steps
}

TEST_CASE("the real actors keep the pace that the flow of their service times has") {
  struct setting {
    uint32_t targets, drafters;
    double postprocess;
    service_law law;
  };
  for (const setting s : {setting{1, 1, 0.2, service_law::constant},
                          setting{5, 3, 0.2, service_law::constant},
                          setting{2, 3, 0.0, service_law::uniform},
                          setting{3, 2, 0.2, service_law::exponential}}) {
    INFO(s.targets << " + " << s.drafters << ", law " << static_cast<int>(s.law));
    token_documents text;
    const int64_t rows = 8 * s.drafters + 1;  // an epoch ends with a step of one batch
    for (int64_t d = 0; d < rows; ++d)
      text.append(std::vector<int32_t>(32, 5), std::vector<uint8_t>(32, 1));
    pipeline_parts p;
    p.source = std::make_shared<const batch_source>(token_set(text), 32, 4, 1);
    constexpr uint64_t steps = 30;
    p.plan.emplace(p.source->rows(), 1, s.drafters, 1, steps);
    p.shape = {4096, 1024, 5, true, at::kBFloat16};
    p.drafter_dtype = p.shape.dtype;
    p.limits = derive_limits(s.targets, 0, s.drafters, p.shape.bytes(), 0);
    p.block_size = 8;
    p.metrics_every = 1 << 30;
    p.progress = false;
    sim_times times = sim_times_of(s.law, 3);
    times.target.seconds = 0.06 * s.targets / s.drafters;
    times.postprocess.seconds = s.postprocess * times.target.seconds;
    times.drafter.seconds = 0.054;
    times.reduction.seconds = times.update.seconds = 0.003;
    add_sim_lanes(p, times);
    std::vector<int64_t> ends(steps);
    p.drafters[0] = sim_drafter(times, [&](uint64_t step) { ends[step] = now_ns(); });
    const flow_layout layout{
        s.targets, s.drafters, p.limits.drafter_batches, p.limits.capture_slots};
    const double forecast = flow(*p.plan, layout, flow_times_of(times), steps).batches_per_s;
    // Other programs on the machine can only make the actors slower: the best counts.
    double best = 0;
    for (int attempt = 0; attempt < 4 && best < 0.95 * forecast; ++attempt) {
      pipeline_system_config config(false);
      caf::actor_system system(config);
      REQUIRE(run_pipeline(system, p).outcome.status == run_status::completed);
      const uint64_t first = p.plan->step(steps / 5).last_k, last = p.plan->total_batches();
      best = std::max(best,
                      static_cast<double>(last - first) * 1e9 /
                          static_cast<double>(ends[steps - 1] - ends[steps / 5]));
    }
    CHECK(best > 0.95 * forecast);
    CHECK(best < 1.05 * forecast);
  }
}

#include "actors/flow_model.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "config/error.hpp"

namespace dflash {

namespace {

struct target_lane {
  double free = 0;                // asks for its next batch
  double postprocess_free = 0;    // of its postprocess
  std::vector<double> handed_on;  // [slot] when its last capture left it
  size_t slot = 0;
};

double none(uint64_t) {
  return 0;
}

}  // namespace

const char* flow_limit_text(flow_limit what) {
  switch (what) {
    case flow_limit::targets:
      return "targets";
    case flow_limit::postprocess:
      return "postprocess";
    case flow_limit::drafters:
      break;
  }
  return "drafters";
}

flow_forecast flow(const step_plan& plan,
                   const flow_layout& layout,
                   const flow_times& times,
                   uint64_t steps) {
  DFLASH_CHECK(steps >= 5 && layout.targets > 0 && layout.drafters > 0, "a flow of nothing");
  std::vector<target_lane> lanes(layout.targets);
  for (target_lane& lane : lanes) lane.handed_on.assign(layout.capture_slots, 0);
  const size_t room = size_t{layout.drafter_batches} * layout.drafters;
  std::vector<double> trained(room, 0);  // [k mod L M]
  std::vector<double> drafter_free(layout.drafters, 0);
  double last_start = 0, commit = 0, from = 0;
  double target_s = 0, drafter_s = 0, step_s = 0;
  const uint64_t first_step = steps / 5;
  uint64_t batches = 0;
  for (uint64_t s = 0; s < steps; ++s) {
    const step_range range = plan.step(s);
    double all_trained = commit;
    for (uint64_t k = range.first_k; k < range.last_k; ++k) {
      target_lane& lane = *std::min_element(
          lanes.begin(), lanes.end(), [](const auto& a, const auto& b) { return a.free < b.free; });
      const double capture_s = times.target(k), post_s = times.postprocess(k);
      const double start = std::max({lane.free, last_start, trained[k % room]});
      last_start = start;
      const double captured = start + capture_s;
      const double delivered = std::max(captured, lane.postprocess_free) + post_s;
      lane.postprocess_free = delivered;
      lane.handed_on[lane.slot] = delivered;
      lane.slot = (lane.slot + 1) % lane.handed_on.size();
      lane.free = std::max(captured, lane.handed_on[lane.slot]);
      double& drafter = drafter_free[k % layout.drafters];
      const double batch_s = times.drafter(k);
      drafter = std::max({delivered, drafter, commit}) + batch_s;
      trained[k % room] = drafter;
      all_trained = std::max(all_trained, drafter);
      if (s <= first_step) continue;
      ++batches;
      target_s += capture_s;
      drafter_s += batch_s;
    }
    const double end_s = (layout.drafters > 1 ? times.reduction(s) : 0) + times.update(s);
    commit = all_trained + end_s;
    if (s == first_step)
      from = commit;
    else if (s > first_step)
      step_s += end_s;
  }
  flow_forecast f;
  const double passed = std::max(commit - from, 1e-12);
  f.batches_per_s = static_cast<double>(batches) / passed;
  f.targets_busy = target_s / passed / layout.targets;
  f.drafters_busy = drafter_s / passed / layout.drafters + step_s / passed;
  return f;
}

double flow_bounds::least() const {
  return std::min({targets, postprocess, drafters});
}

flow_limit flow_bounds::limit() const {
  if (drafters <= std::min(targets, postprocess)) return flow_limit::drafters;
  return targets <= postprocess ? flow_limit::targets : flow_limit::postprocess;
}

flow_bounds bounds_of(const step_plan& plan,
                      const flow_layout& layout,
                      const flow_times& times,
                      uint64_t steps) {
  flow_bounds bounds;
  flow_layout wide = layout;
  wide.drafter_batches = 1 << 10;
  flow_times drafters = times;
  drafters.target = drafters.postprocess = none;
  bounds.drafters = flow(plan, wide, drafters, steps).batches_per_s;
  double target_s = 0, postprocess_s = 0;
  const uint64_t first = plan.step(steps / 5).last_k, last = plan.step(steps - 1).last_k;
  for (uint64_t k = first; k < last; ++k) {
    target_s += times.target(k);
    postprocess_s += times.postprocess(k);
  }
  const auto rate = [&](double seconds) {
    const double batches = static_cast<double>(last - first) * layout.targets;
    return seconds > 0 ? batches / seconds : std::numeric_limits<double>::infinity();
  };
  bounds.targets = rate(target_s);
  bounds.postprocess = rate(postprocess_s);
  return bounds;
}

}  // namespace dflash

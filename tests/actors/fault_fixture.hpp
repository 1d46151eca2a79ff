// Faults in the middle of a run, and what a run must be equal to in spite of them. Every run has a
// deadline: nothing may hang.
#pragma once

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/runtime/seeded_faults.hpp"
#include "actors/supervision.hpp"
#include "data/random.hpp"
#include "model/replica_state.hpp"
#include "tests/actors/latch.hpp"
#include "tests/actors/training_fixture.hpp"

namespace dflash::pipeline_test {

inline constexpr std::chrono::seconds patience{120};

// A run that hangs cannot be ended from inside: the program ends, and says where.
inline pipeline_result run_in_time(training& t,
                                   const std::function<void()>& before_the_system_ends = {}) {
  auto running = std::async(std::launch::async, [&] { return t.run(before_the_system_ends); });
  if (running.wait_for(patience) != std::future_status::ready) {
    fmt::print(stderr, "a run hangs: {}\n", Catch::getResultCapture().getCurrentTestName());
    std::abort();
  }
  return running.get();
}

inline uint64_t restarts_of(const pipeline_result& result, const std::string& name = {}) {
  uint64_t sum = 0;
  for (const mailbox_report& m : result.mailboxes)
    if (m.actor.starts_with(name)) sum += m.restarts;
  return sum;
}

inline std::string state_of(const pipeline_result& result, const std::string& name) {
  for (const mailbox_report& m : result.mailboxes)
    if (m.actor == name) return m.state;
  return {};
}

inline void restart_soon(training& t, uint32_t max_failures = 1000) {
  t.parts().restart = {max_failures, std::chrono::milliseconds(1), std::chrono::milliseconds(4)};
}

inline const std::vector<std::string> all_but_drafters = {
    "target_forward", "postprocess", "loader", "metrics"};

inline layout layout_of(uint32_t targets, uint32_t drafters) {
  return {.targets = targets, .drafters = drafters, .noise = 0.05};
}

// What decides how a replica goes on, copied.
inline std::vector<at::Tensor> state_copy(drafter_trainer& trainer) {
  std::vector<at::Tensor> all;
  for (const auto& [name, tensor] : replica_state(state_of(trainer)).tensors)
    all.push_back(tensor.clone());
  return all;
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return true;
}

// As if the memory of its lane were gone.
inline void spoil(drafter_trainer& trainer) {
  for (auto& [name, tensor] : state_of(trainer).tensors)
    tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  trainer.state().set_updates(99);
  trainer.refresh_compute();
}

// Fault points at which drafters die at seeded places and lose their memory.
class dying_drafters {
public:
  dying_drafters(training& t, uint64_t seed, double share, uint64_t most)
      : t_(t), faults_(seed, {"drafter_train"}, share, most) {}

  void operator()(const std::string& actor, std::string_view point) {
    if (!actor.starts_with("drafter_train")) return;
    const auto rank = static_cast<uint32_t>(std::stoul(actor.substr(14)));
    if (point == "joined") {
      const std::lock_guard guard(mutex_);
      dead_.erase(rank);
    }
    try {
      faults_(actor, point);
    } catch (...) {
      {
        const std::lock_guard guard(mutex_);
        dead_.insert(rank);
      }
      spoil(t_.trainer(rank));
      throw;
    }
  }
  uint64_t thrown() const { return faults_.thrown(); }
  // Who died and did not come back: nobody needed it any more, if the run has ended.
  std::set<uint32_t> dead() const {
    const std::lock_guard guard(mutex_);
    return dead_;
  }

private:
  training& t_;
  seeded_faults faults_;
  mutable std::mutex mutex_;
  std::set<uint32_t> dead_;
};

// State and lines of a run with one target that nothing disturbs, made once for each layout that
// has bits of its own.
struct undisturbed {
  std::vector<at::Tensor> state;
  uint64_t updates = 0;
  std::vector<std::string> lines;

  static const undisturbed& of(layout l) {
    static std::map<std::string, undisturbed> known;
    l.targets = 1;
    l.budget = l.save_every = 0;
    auto& u = known[fmt::format("{} {} {} {}", l.drafters, l.steps, l.accumulation, l.ema)];
    if (u.lines.empty()) {
      const test::scratch_folder folder;
      training t(l, folder.path());
      completes(t);
      u.state = state_copy(t.trainer(0));
      u.updates = t.trainer(0).state().updates();
      u.lines = fixed_lines(folder.path());
    }
    return u;
  }
};

// `dead`: drafters that died after the last step, are not needed again and have lost their memory:
// the last checkpoint has to have what they had.
inline void equals_undisturbed(training& t,
                               const pipeline_result& result,
                               const std::filesystem::path& folder,
                               const layout& l,
                               const std::set<uint32_t>& dead = {}) {
  const undisturbed& calm = undisturbed::of(l);
  INFO(result.outcome.reason);
  REQUIRE(result.outcome.status == run_status::completed);
  CHECK(result.outcome.stuck.empty());
  for (uint32_t i = 0; i < l.drafters; ++i) {
    INFO("drafter " << i);
    const std::string now = state_of(result, fmt::format("drafter_train {}", i));
    if (dead.count(i) > 0 || now == activity_text(activity::restarting)) {
      const checkpoint_scan scan = find_checkpoint(folder / "checkpoints");
      REQUIRE(scan.newest);
      load_checkpoint(*scan.newest, scan.state, t.trainer(i));
    }
    CHECK(same_bits(state_copy(t.trainer(i)), calm.state));
    CHECK(t.trainer(i).state().updates() == calm.updates);
  }
  CHECK(fixed_lines(folder) == calm.lines);
  CHECK(result.totals.steps == t.parts().plan->total_steps());
  CHECK(result.totals.captured == result.totals.batches);
}

}  // namespace dflash::pipeline_test

// The real actors on simulated lanes (actors/sim_lanes.hpp): what the pipeline costs and whether
// mailbox limits alone keep its slowest stage busy. Batches have the bytes of the reference sizes
// (49,152 tokens, 5 taps and the last state of width 5,120 in bf16: 3 GB), lanes sleep. Prints a
// table and, as its last line, JSON; exit 1 if a limit was passed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/pipeline.hpp"
#include "actors/sim_lanes.hpp"
#include "bench/sweep_svg.hpp"
#include "config/error.hpp"

namespace dflash::bench {
namespace {

constexpr hidden_shape reference{49152, 5120, 5, true, at::kBFloat16};
constexpr int64_t batch_tokens =
    256;  // of the tokens themselves: their making is not measured here

enum class balance { target_bound, balanced, drafter_bound };

const char* text_of(balance b) {
  return b == balance::target_bound ? "targets" : b == balance::balanced ? "balanced" : "drafters";
}

struct setting {
  uint32_t targets = 1, drafters = 1;
  balance slow = balance::balanced;
  double postprocess = 0;  // share of the target's time
  bool exponential = false;
  double limits = 1;  // factor on the default limits
};

struct options {
  double seconds = 4;            // per setting
  double batch_seconds = 0.025;  // shortest of capture and step
  std::vector<std::string> layouts = {"1+1", "1+3", "5+1", "5+3", "7+2", "40+24"};
  bool sweep = true;
  std::string svg_file;
};

struct measured {
  double ratio = 0;  // batches/s of what the slowest stage allows
  uint64_t refused = 0, peak_bytes = 0, limit_bytes = 0;
  double cpu_us = 0;        // of the process less that of the lanes' own work, per batch
  double hand_over_us = 0;  // the same per message
};

// Drafters could do `want` times what the targets can; reduction and update take a tenth of a
// batch.
sim_times times_of(const setting& s, double shortest) {
  const double want = s.slow == balance::target_bound ? 1.4
                      : s.slow == balance::balanced   ? 1.0
                                                      : 1 / 1.4;
  const double step = static_cast<double>(s.drafters) / (s.targets * want);  // target time = 1
  const double unit = shortest / std::min(1.0, step / 1.1);
  sim_times t = sim_times_of(s.exponential ? service_law::exponential : service_law::constant, 1);
  t.target.seconds = unit;
  t.postprocess.seconds = unit * s.postprocess;
  t.drafter.seconds = unit * step / 1.1;
  t.reduction.seconds = s.drafters > 1 ? unit * step * 0.03 / 1.1 : 0;
  t.update.seconds = unit * step * 0.1 / 1.1 - t.reduction.seconds;
  return t;
}

// Rows of an epoch are whole steps: what others lose to the last one of an epoch is not measured
// here.
std::shared_ptr<const batch_source> make_source(uint32_t drafters) {
  token_documents text;
  for (uint32_t d = 0; d < (64 / drafters + 1) * drafters; ++d)
    text.append(std::vector<int32_t>(batch_tokens, 5), std::vector<uint8_t>(batch_tokens, 1));
  return std::make_shared<const batch_source>(token_set(text), batch_tokens, 8, 1);
}

int64_t cpu_ns(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// Adds the calling thread's CPU time within `work` to `spent`.
template <class Work>
auto metered_work(std::shared_ptr<std::atomic<int64_t>> spent, Work work) {
  return [spent, work](auto&&... arguments) {
    const int64_t began = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    auto result = work(std::forward<decltype(arguments)>(arguments)...);
    *spent += cpu_ns(CLOCK_THREAD_CPUTIME_ID) - began;
    return result;
  };
}

struct moment {
  int64_t wall_ns = 0, cpu_ns = 0;
};

measured run(const setting& s, const options& given) {
  const sim_times t = times_of(s, given.batch_seconds);
  pipeline_parts p;
  p.source = make_source(s.drafters);
  p.limits = derive_limits(s.targets, 0, s.drafters, reference.bytes(), 0);
  const auto scaled = [&](uint32_t n) {
    return std::max(1U, static_cast<uint32_t>(std::lround(n * s.limits)));
  };
  p.limits.drafter_batches = scaled(p.limits.drafter_batches);
  p.limits.capture_slots = scaled(p.limits.capture_slots);
  const flow_layout layout{s.targets, s.drafters, p.limits.drafter_batches, p.limits.capture_slots};
  const double pace = s.targets / t.target.seconds;
  // Targets begin together and stay in step: batches come N at a time, so that only a multiple of N
  // steps has the pace of the run. Before it, the pipeline fills.
  const auto window = static_cast<uint64_t>(
      std::ceil(std::max(32.0, given.seconds * pace / s.drafters) / s.targets) * s.targets);
  const uint64_t first = std::max<uint64_t>(8, s.targets);
  const uint64_t steps = first + window + 1;
  p.plan.emplace(p.source->rows(), 1, s.drafters, 1, static_cast<int64_t>(steps));
  // Random times: of more steps than are run, else chance decides.
  const uint64_t bound_steps = s.exponential ? std::max<uint64_t>(steps, 20000) : steps;
  const step_plan long_plan(p.source->rows(), 1, s.drafters, 1, static_cast<int64_t>(bound_steps));
  const double bound = bounds_of(long_plan, layout, flow_times_of(t), bound_steps).least();
  p.shape = reference;
  p.drafter_dtype = reference.dtype;
  p.block_size = 16;
  p.metrics_every = 1 << 30;
  p.progress = false;
  add_sim_lanes(p, t);
  std::vector<moment> ends(steps);
  auto spent = std::make_shared<std::atomic<int64_t>>(0);  // CPU of the lanes' own work
  p.drafters[0] = sim_drafter(t, [&, spent](uint64_t step) {
    ends[step] = {now_ns(), cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - *spent};
  });
  for (capture_function& target : p.targets) target = metered_work(spent, target);
  p.finite = metered_work(spent, p.finite);
  for (drafter_work& drafter : p.drafters) {
    drafter.accumulate = metered_work(spent, drafter.accumulate);
    drafter.update = metered_work(spent, drafter.update);
  }
  pipeline_system_config config(false);
  caf::actor_system system(config);
  const auto result = run_pipeline(system, p);
  if (result.outcome.status != run_status::completed)
    throw std::runtime_error("the run failed: " + result.outcome.reason);
  measured out;
  const moment from = ends[first], to = ends.back();
  const auto batches = static_cast<double>(p.plan->total_batches() - p.plan->step(first).last_k);
  out.ratio = batches * 1e9 / static_cast<double>(to.wall_ns - from.wall_ns) / bound;
  out.cpu_us = static_cast<double>(to.cpu_ns - from.cpu_ns) * 1e-3 / batches;
  out.limit_bytes = p.limits.total_bytes();
  uint64_t messages = 0;
  for (const mailbox_report& m : result.mailboxes) {
    out.refused += m.refused;
    out.peak_bytes += m.peak_bytes;
    messages += m.handled;
  }
  out.hand_over_us =
      out.cpu_us * static_cast<double>(p.plan->total_batches()) / static_cast<double>(messages);
  return out;
}

// What this machine takes for any hand-over to a thread that sleeps: CPU of both sides, by one
// mutex and one condition variable, with pauses as between messages of a pipeline.
double bare_hand_over_us() {
  constexpr int rounds = 1000;
  constexpr std::chrono::milliseconds pause{2};
  std::mutex mutex;
  std::condition_variable changed;
  int turn = 0;  // even: of this thread
  const auto hand_over = [&](int mine, bool wait) {
    std::unique_lock lock(mutex);
    ++turn;
    changed.notify_all();
    if (wait) changed.wait(lock, [&] { return turn % 2 == mine; });
  };
  const auto cpu_of = [&](bool with_other) {
    std::thread other;
    if (with_other)
      other = std::thread([&] {
        for (int i = 0; i < rounds; ++i) {
          {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return turn % 2 == 1; });
          }
          hand_over(1, false);
        }
      });
    const int64_t began = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < rounds; ++i) {
      std::this_thread::sleep_for(pause);
      if (with_other) hand_over(0, true);
    }
    if (with_other) other.join();
    return cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - began;
  };
  const int64_t sleeping = cpu_of(false), with_other = cpu_of(true);
  return static_cast<double>(with_other - sleeping) * 1e-3 / (2 * rounds);
}

struct totals {
  double worst_ratio = 1e9, worst_exponential = 1e9, cpu_us = 0, hand_over_us = 0;
  uint64_t fuse_hits = 0, peak_bytes = 0, limit_bytes = 0;
  bool passed_a_limit = false;

  void add(const setting& s, const measured& m) {
    double& worst = s.exponential ? worst_exponential : worst_ratio;
    if (s.limits == 1) worst = std::min(worst, m.ratio);
    cpu_us = std::max(cpu_us, m.cpu_us);
    hand_over_us = std::max(hand_over_us, m.hand_over_us);
    fuse_hits += m.refused;
    passed_a_limit |= m.refused > 0 || m.peak_bytes > m.limit_bytes;
    if (m.peak_bytes <= peak_bytes) return;
    peak_bytes = m.peak_bytes;
    limit_bytes = m.limit_bytes;
  }
};

measured show(const setting& s, const options& given, totals& all) {
  const measured m = run(s, given);
  all.add(s, m);
  std::printf(
      "%2u + %-2u  slow: %-8s  postprocess %3.1f  %-11s  limits x %-4g  ratio %.3f  "
      "peak %5.1f of %5.1f GB  refused %llu  cpu %3.0f us a batch, %4.1f us a hand-over\n",
      s.targets,
      s.drafters,
      text_of(s.slow),
      s.postprocess,
      s.exponential ? "exponential" : "constant",
      s.limits,
      m.ratio,
      static_cast<double>(m.peak_bytes) * 1e-9,
      static_cast<double>(m.limit_bytes) * 1e-9,
      static_cast<unsigned long long>(m.refused),
      m.cpu_us,
      m.hand_over_us);
  std::fflush(stdout);
  return m;
}

setting layout_of(const std::string& text) {
  setting s;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%u+%u%c", &s.targets, &s.drafters, &rest) != 2 || s.targets < 1 ||
      s.drafters < 1 || s.targets > 512 || s.drafters > 512)
    throw error("\"" + text + "\" is not a layout", "--layout", "write it as 5+3");
  return s;
}

// The sweep of limits at 5 + 3, in JSON too.
nlohmann::json sweep_of(const options& given, totals& all) {
  nlohmann::json sweep;
  std::vector<sweep_curve> curves = {{"constant service times", {}},
                                     {"exponential service times", {}}};
  options longer = given;
  longer.seconds *= 2;
  for (const double limits : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0})
    for (const bool exponential : {false, true}) {
      const measured m = show({5, 3, balance::balanced, 0.2, exponential, limits}, longer, all);
      curves[exponential ? 1 : 0].points.push_back({limits, m.ratio});
      sweep.push_back({{"limits", limits}, {"exponential", exponential}, {"ratio", m.ratio}});
    }
  if (!given.svg_file.empty() &&
      !(std::ofstream(given.svg_file) << sweep_svg(curves) << std::flush))
    throw error(
        "cannot write the drawing", given.svg_file, "is its folder there, with room on the disk?");
  return sweep;
}

int main_of(const options& given) {
  totals all;
  const double bare = bare_hand_over_us();
  std::printf("a bare hand-over between two threads: cpu %.1f us\n", bare);
  constexpr balance balances[] = {balance::target_bound, balance::balanced, balance::drafter_bound};
  for (const std::string& layout : given.layouts)
    for (const balance slow : balances)
      for (const double postprocess : {0.0, 0.2}) {
        setting s = layout_of(layout);
        s.slow = slow;
        s.postprocess = postprocess;
        show(s, given, all);
      }
  nlohmann::json line = {{"batch_seconds", given.batch_seconds}};
  if (given.sweep) {
    options longer = given;
    longer.seconds *= 2;
    for (const balance slow : balances) show({5, 3, slow, 0.2, true}, longer, all);
    line["sweep"] = sweep_of(given, all);
    line["worst_ratio_exponential"] = all.worst_exponential;
  }
  line["worst_ratio_to_bound"] = all.worst_ratio;
  line["fuse_hits"] = all.fuse_hits;
  line["peak_bytes"] = all.peak_bytes;
  line["limit_bytes"] = all.limit_bytes;
  line["actor_cpu_us_per_batch"] = all.cpu_us;
  line["cpu_us_per_hand_over"] = all.hand_over_us;
  line["cpu_us_per_bare_hand_over"] = bare;
  std::printf("%s\n", line.dump().c_str());
  return all.passed_a_limit ? 1 : 0;
}

}  // namespace
}  // namespace dflash::bench

int main(int count, char** values) {
  CLI::App app{
      "The pipeline's actors on simulated lanes: throughput against the bound of the slowest "
      "stage, bytes against the limits"};
  dflash::bench::options given;
  app.add_option("--seconds", given.seconds, "per setting; some 50 settings")
      ->capture_default_str();
  app.add_option("--batch-seconds", given.batch_seconds, "shortest service time")
      ->capture_default_str()
      ->check(CLI::Range(0.0001, 100.0));
  app.add_option("--layout", given.layouts, "targets + drafters, may be repeated")
      ->capture_default_str();
  app.add_flag("!--no-sweep", given.sweep, "leave out random times and the sweep of limits");
  app.add_option("--svg", given.svg_file, "Draw the sweep of limits into this file");
  CLI11_PARSE(app, count, values);
  try {
    return dflash::bench::main_of(given);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}

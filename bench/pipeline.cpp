// The real actors on simulated lanes (actors/sim_lanes.hpp): what the pipeline costs and whether
// mailbox limits alone keep its slowest stage busy. Batches have the bytes of the reference sizes
// (49,152 tokens, 5 taps and the last state of width 5,120 in bf16: 3 GB), lanes sleep. Prints a
// table and, as its last line, JSON; exit 1 if a limit was passed.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
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
constexpr double shortest_service = 0.025;  // s: a sleep is some 0.1 ms longer than it should be

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

struct measured {
  double ratio = 0;  // batches/s of what the slowest stage allows
  uint64_t refused = 0, peak_bytes = 0, limit_bytes = 0;
  double cpu_us = 0;  // of the process, per batch
};

struct times {
  double target, batch, update;
};

// Drafters could do `want` times what the targets can; an update takes a tenth of a batch.
times times_of(const setting& s) {
  const double want = s.slow == balance::target_bound ? 1.4
                      : s.slow == balance::balanced   ? 1.0
                                                      : 1 / 1.4;
  const double step = static_cast<double>(s.drafters) / (s.targets * want);  // target time = 1
  const double unit = shortest_service / std::min(1.0, step / 1.1);
  return {unit, unit * step / 1.1, unit * step * 0.1 / 1.1};
}

// A step waits for the slowest of its M drafters: of M exponential times the largest is on average
// 1 + 1/2 + ... + 1/M means.
double bound_of(const setting& s, const times& t) {
  double slowest = t.batch;
  if (s.exponential)
    for (uint32_t m = 2; m <= s.drafters; ++m) slowest += t.batch / m;
  const double targets = s.targets / std::max(t.target, t.target * s.postprocess);
  return std::min(targets, s.drafters / (slowest + t.update));
}

std::shared_ptr<const batch_source> make_source() {
  token_documents text;
  for (int d = 0; d < 64; ++d)
    text.append(std::vector<int32_t>(batch_tokens, 5), std::vector<uint8_t>(batch_tokens, 1));
  return std::make_shared<const batch_source>(token_set(text), batch_tokens, 8, 1);
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

measured run(const setting& s, double seconds) {
  using clock = std::chrono::steady_clock;
  const times t = times_of(s);
  const double bound = bound_of(s, t);
  pipeline_parts p;
  p.source = make_source();
  const auto steps = static_cast<int64_t>(
      std::max(40.0, std::ceil(seconds * bound / static_cast<double>(s.drafters))));
  p.plan.emplace(p.source->rows(), 1, s.drafters, 1, steps);
  p.shape = reference;
  p.drafter_dtype = reference.dtype;
  p.limits = derive_limits(s.targets, 0, s.drafters, p.shape.bytes(), 0);
  const auto scaled = [&](uint32_t n) {
    return std::max(1U, static_cast<uint32_t>(std::lround(n * s.limits)));
  };
  p.limits.drafter_batches = scaled(p.limits.drafter_batches);
  p.limits.capture_slots = scaled(p.limits.capture_slots);
  p.block_size = 16;
  p.metrics_every = 1 << 30;
  p.progress = false;
  for (uint32_t i = 0; i < s.targets; ++i)
    p.targets.push_back(sim_capture({t.target, s.exponential, 1}, p.shape));
  p.finite = sim_hand_over({t.target * s.postprocess, s.exponential, 2});
  std::vector<clock::time_point> ends(static_cast<size_t>(steps));
  for (uint32_t i = 0; i < s.drafters; ++i)
    p.drafters.push_back(sim_drafter({t.batch, s.exponential, 3}, {t.update, s.exponential, 4}));
  p.drafters[0] = sim_drafter({t.batch, s.exponential, 3},
                              {t.update, s.exponential, 4},
                              [&](uint64_t step) { ends[step] = clock::now(); });
  p.drafters[0].snapshot = [](const save_request&) { return [] {}; };
  pipeline_system_config config(false);
  caf::actor_system system(config);
  const double cpu = cpu_seconds();
  const auto result = run_pipeline(system, p);
  measured out;
  out.cpu_us = (cpu_seconds() - cpu) * 1e6 / static_cast<double>(p.plan->total_batches());
  if (result.outcome.status != run_status::completed)
    throw std::runtime_error("the run failed: " + result.outcome.reason);
  // Without the filling of the pipeline: from the first fifth of the steps to the last.
  const size_t from = ends.size() / 5;
  const double passed = std::chrono::duration<double>(ends.back() - ends[from]).count();
  const uint64_t batches = p.plan->step(ends.size() - 1).last_k - p.plan->step(from).last_k;
  out.ratio = static_cast<double>(batches) / passed / bound;
  out.limit_bytes = p.limits.total_bytes();
  for (const mailbox_report& m : result.mailboxes) {
    out.refused += m.refused;
    out.peak_bytes += m.peak_bytes;
  }
  return out;
}

struct totals {
  double worst_ratio = 1e9, worst_exponential = 1e9, cpu_us = 0;
  uint64_t fuse_hits = 0, peak_bytes = 0, limit_bytes = 0;
  bool passed_a_limit = false;

  void add(const setting& s, const measured& m) {
    double& worst = s.exponential ? worst_exponential : worst_ratio;
    if (s.limits == 1) worst = std::min(worst, m.ratio);
    cpu_us = std::max(cpu_us, m.cpu_us);
    fuse_hits += m.refused;
    passed_a_limit |= m.refused > 0 || m.peak_bytes > m.limit_bytes;
    if (m.peak_bytes <= peak_bytes) return;
    peak_bytes = m.peak_bytes;
    limit_bytes = m.limit_bytes;
  }
};

measured show(const setting& s, double seconds, totals& all) {
  const measured m = run(s, seconds);
  all.add(s, m);
  std::printf(
      "%2u + %-2u  slow: %-8s  postprocess %3.1f  %-11s  limits x %-4g  ratio %.3f  "
      "peak %5.1f of %5.1f GB  refused %llu  cpu %.0f us a batch\n",
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
      m.cpu_us);
  std::fflush(stdout);
  return m;
}

int main_of(double seconds, const std::string& svg_file) {
  totals all;
  constexpr balance balances[] = {balance::target_bound, balance::balanced, balance::drafter_bound};
  constexpr uint32_t layouts[][2] = {{1, 1}, {1, 3}, {5, 1}, {5, 3}, {7, 2}, {40, 24}};
  for (const auto [targets, drafters] : layouts)
    for (const balance slow : balances)
      for (const double postprocess : {0.0, 0.2})
        show({targets, drafters, slow, postprocess}, seconds, all);
  for (const balance slow : balances) show({5, 3, slow, 0.2, true}, 2 * seconds, all);
  nlohmann::json sweep;
  std::vector<sweep_curve> curves = {{"constant service times", {}},
                                     {"exponential service times", {}}};
  for (const double limits : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0})
    for (const bool exponential : {false, true}) {
      const measured m =
          show({5, 3, balance::balanced, 0.2, exponential, limits}, 2 * seconds, all);
      curves[exponential ? 1 : 0].points.push_back({limits, m.ratio});
      sweep.push_back({{"limits", limits}, {"exponential", exponential}, {"ratio", m.ratio}});
    }
  const nlohmann::json line = {{"worst_ratio_to_bound", all.worst_ratio},
                               {"worst_ratio_exponential", all.worst_exponential},
                               {"fuse_hits", all.fuse_hits},
                               {"peak_bytes", all.peak_bytes},
                               {"limit_bytes", all.limit_bytes},
                               {"actor_cpu_us_per_batch", all.cpu_us},
                               {"sweep", sweep}};
  std::printf("%s\n", line.dump().c_str());
  if (!svg_file.empty() && !(std::ofstream(svg_file) << sweep_svg(curves) << std::flush))
    throw error(
        "cannot write the drawing", svg_file, "is its folder there, with room on the disk?");
  return all.passed_a_limit ? 1 : 0;
}

}  // namespace
}  // namespace dflash::bench

int main(int count, char** values) {
  CLI::App app{
      "The pipeline's actors on simulated lanes: throughput against the bound of the slowest "
      "stage, bytes against the limits"};
  double seconds = 4;
  app.add_option("--seconds", seconds, "per setting; some 50 settings")->capture_default_str();
  std::string svg_file;
  app.add_option("--svg", svg_file, "Draw the sweep of limits into this file");
  CLI11_PARSE(app, count, values);
  try {
    return dflash::bench::main_of(seconds, svg_file);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}

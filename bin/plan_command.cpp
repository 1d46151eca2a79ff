// `dflash plan`: what a run would take and reach, before it is started: memory by part, throughput
// of every split of the devices. Does no work but, if asked, a short measurement.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bin/commands.hpp"
#include "bin/memory_plan.hpp"
#include "bin/overrides.hpp"
#include "bin/service_times.hpp"
#include "bin/sim_setup.hpp"
#include "bin/throughput_plan.hpp"
#include "bin/training_setup.hpp"
#include "config/error.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace {

constexpr double longest_probe = 120, default_probe = 60;
constexpr uint32_t most_devices = 256;

struct plan_options {
  std::string file, from;
  bool probe = false, json = false;
  double probe_seconds = default_probe;
  uint32_t devices = 0;  // 0: as many as the layout has lanes
};

struct measured_times {
  std::string how;  // for people
  std::optional<service_means> means;
  std::optional<sim_times> sim;

  flow_times of(uint32_t drafters) const {
    return sim ? flow_times_of(*sim) : times_of(*means, drafters);
  }
};

std::string seconds_text(double seconds) {
  return duration_text(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
}

// The target runs in a probe, nothing is read or kept.
probe_result probe_of(run_config config, double seconds) {
  config.run.resume = false;
  config.data.keep_hidden_states = 0;
  config.data.hidden_states.clear();
  config.eval = {};
  return probe(prepare_training(config, {}, {}), seconds);
}

measured_times times_for(const plan_options& given, const run_config& config) {
  measured_times t;
  if (is_simulated(config)) {
    t.how = "of the [sim] section, " + config.sim.law;
    t.sim = sim_times_of(config.sim);
  } else if (given.probe) {
    const probe_result measured = probe_of(config, given.probe_seconds);
    t.how =
        fmt::format("measured, {} batches in {}", measured.batches, seconds_text(measured.seconds));
    t.means = measured.means;
  } else if (!given.from.empty()) {
    t.how = "of " + given.from;
    t.means = read_service_times(given.from);
  }
  return t;
}

std::string means_text(const service_means& m) {
  return fmt::format(
      "  a batch: target {}, postprocess {}, drafter {}; a step: reduction of {} {}, update {}\n",
      seconds_text(m.target.seconds),
      seconds_text(m.postprocess.seconds),
      seconds_text(m.drafter.seconds),
      m.drafters,
      m.reduction.count > 0 ? seconds_text(m.reduction.seconds) : "-",
      seconds_text(m.update.seconds));
}

std::string advice(const std::vector<split_forecast>& splits, const run_config& c) {
  const split_forecast& best = splits[best_of(splits)];
  std::string text = fmt::format("  best: {} targets + {} drafters, limited by {}",
                                 best.targets,
                                 best.drafters,
                                 flow_limit_text(best.bounds.limit()));
  if (best.lost() > 0.02)
    text += fmt::format("; {} lost to limits and the barrier of a step", share_text(best.lost()));
  text += "\n";
  if (best.drafters != c.layout.drafters.size())
    text += "  another number of drafters is another run: steps have other batches\n";
  const bool on_cpu =
      std::any_of(c.layout.drafters.begin(), c.layout.drafters.end(), [](const std::string& lane) {
        const lane_name l = parse_lane(lane);
        return !l.cuda && !l.sim;
      });
  const auto threads = [&](uint64_t targets, uint64_t drafters) {
    return targets * static_cast<uint64_t>(c.layout.target_threads) +
           drafters * static_cast<uint64_t>(c.layout.drafter_threads);
  };
  const uint64_t cores = std::max(1U, std::thread::hardware_concurrency());
  if (on_cpu && threads(best.targets, best.drafters) > cores)
    text += fmt::format(
        "  these lanes share {} cores: the forecast holds for the layout that was measured, and "
        "for "
        "others only where every thread has a core\n",
        cores);
  return text;
}

nlohmann::json json_of(const split_forecast& s) {
  const auto finite = [](double x) { return x < 1e300 ? nlohmann::json(x) : nlohmann::json(); };
  return {{"targets", s.targets},
          {"drafters", s.drafters},
          {"tokens_per_s", s.tokens_per_s},
          {"batches_per_s", s.flow.batches_per_s},
          {"targets_busy", s.flow.targets_busy},
          {"drafters_busy", s.flow.drafters_busy},
          {"limit", flow_limit_text(s.bounds.limit())},
          {"bounds",
           {{"targets", finite(s.bounds.targets)},
            {"postprocess", finite(s.bounds.postprocess)},
            {"drafters", finite(s.bounds.drafters)}}}};
}

nlohmann::json json_of(const std::vector<memory_place>& places) {
  nlohmann::json list = nlohmann::json::array();
  for (const memory_place& place : places) {
    nlohmann::json parts = nlohmann::json::array();
    for (const memory_part& p : place.parts)
      parts.push_back({{"name", p.name}, {"bytes", p.bytes}});
    list.push_back({{"place", place.name},
                    {"bytes", place.total()},
                    {"limit_bytes", place.limit_bytes},
                    {"fits", place.fits()},
                    {"parts", parts}});
  }
  return list;
}

int plan(const plan_options& given, const std::vector<std::string>& overrides) {
  run_config config = load_run_config(given.file, overrides);
  config.run.resume = false;  // what has been done changes nothing here
  const training_setup setup = outline_training(config, {});
  const std::vector<memory_place> places =
      is_simulated(config) ? std::vector<memory_place>() : memory_plan(config, setup.memory);
  if (!given.json) {
    fmt::print("{}", setup.plan_text());
    if (!places.empty()) fmt::print("\nmemory\n{}", memory_table(places));
    std::fflush(stdout);
  }
  if (!places.empty()) check_memory(config, setup.memory);  // and so before a probe

  nlohmann::json out = {{"memory", json_of(places)},
                        {"in_flight_limit_bytes", setup.parts.limits.total_bytes()}};
  const measured_times times = times_for(given, config);
  if (times.how.empty()) {
    if (!given.json)
      fmt::print("\nthroughput: --probe measures the lanes here, --from RUN takes a run's times\n");
  } else {
    const auto targets = static_cast<uint32_t>(config.layout.targets.size());
    const auto drafters = static_cast<uint32_t>(config.layout.drafters.size());
    const uint32_t devices = given.devices > 0 ? given.devices : targets + drafters;
    throughput_basis basis;
    basis.rows = setup.parts.source->rows();
    basis.accumulation = config.optim.accumulation;
    basis.row_tokens = static_cast<double>(setup.parts.source->documents().tokens()) /
                       static_cast<double>(basis.rows);
    basis.max_in_flight_batches = config.layout.max_in_flight / setup.parts.shape.bytes();
    const auto splits = forecast_splits(devices, basis, [&](uint32_t m) { return times.of(m); });
    if (splits.empty())
      throw error(fmt::format("layout.max_in_flight is too small for {} devices", devices),
                  "layout.max_in_flight",
                  "leave it out: it is derived from the layout");
    const split_forecast present = forecast_of(targets, drafters, basis, times.of(drafters));
    out["throughput"] = {{"devices", devices},
                         {"times", times.how},
                         {"present", json_of(present)},
                         {"best", json_of(splits[best_of(splits)])}};
    for (const split_forecast& s : splits) out["throughput"]["splits"].push_back(json_of(s));
    if (!given.json) {
      fmt::print("\nthroughput of {} devices, times {}\n", devices, times.how);
      if (times.means) fmt::print("{}", means_text(*times.means));
      fmt::print("{}{}", throughput_table(splits, targets, drafters), advice(splits, config));
      if (targets + drafters != devices)
        fmt::print("  this layout, {} + {}: {}\n",
                   targets,
                   drafters,
                   rate_text(present.tokens_per_s, "tokens"));
    }
  }
  if (given.json) fmt::print("{}\n", out.dump());
  return 0;
}

constexpr const char* footer =
    R"(Memory is worked out from shapes alone; a layout that does not fit ends with exit code 2 and the
smallest change that would. Throughput needs the times of the lanes:
  dflash plan my.toml --probe                  train for a minute with all lanes, keep nothing
  dflash plan my.toml --from runs/my           take those of a run that has ended
  dflash plan my.toml --from runs/my --devices 8     every split of 8 such devices
  dflash plan config/presets/sim-5+3.toml      simulated lanes bring their times along)";

}  // namespace

void add_plan_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<plan_options>();
  CLI::App* command = app.add_subcommand(
      "plan", "What a run would take and reach: memory by part, the best split of the devices");
  command->add_option("FILE", given->file, "TOML file with the run's configuration")->required();
  auto* probe =
      command->add_flag("--probe", given->probe, "Measure the lanes on this machine first");
  command->add_option("--probe-seconds", given->probe_seconds, "How long, without loading")
      ->capture_default_str()
      ->check(CLI::Range(1.0, longest_probe));
  command->add_option("--from", given->from, "Folder of a run: take the times of its lanes")
      ->excludes(probe);
  command
      ->add_option(
          "--devices", given->devices, "How many to split; else as many as the layout has lanes")
      ->check(CLI::Range(2U, most_devices));
  command->add_flag("--json", given->json, "One line of JSON instead of tables");
  accept_overrides(*command);
  command->footer(footer + std::string("\n\n") + command->get_footer());
  command->callback([given, command, &action] {
    action = [given, command] { return plan(*given, overrides_of(*command)); };
  });
}

}  // namespace dflash

#include "bin/service_times.hpp"

#include <fmt/format.h>

#include <caf/all.hpp>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "actors/drafter_work.hpp"
#include "actors/pipeline.hpp"
#include "config/error.hpp"

namespace dflash {

namespace {

json_object json_of(const service_mean& m) {
  json_object j;
  j.add("mean_s", m.seconds).add("count", m.count);
  return j;
}

// Calls `stop` after `seconds`, unless destroyed before.
class alarm {
public:
  alarm(double seconds, std::function<void()> stop)
      : thread_([this, seconds, stop = std::move(stop)] {
          std::unique_lock lock(mutex_);
          if (!over_.wait_for(
                  lock, std::chrono::duration<double>(seconds), [this] { return done_; }))
            stop();
        }) {}
  ~alarm() {
    {
      const std::lock_guard guard(mutex_);
      done_ = true;
    }
    over_.notify_all();
    thread_.join();
  }
  alarm(const alarm&) = delete;
  alarm& operator=(const alarm&) = delete;

private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace

json_object json_of(const service_means& means) {
  json_object j;
  j.add("target", json_of(means.target)).add("postprocess", json_of(means.postprocess));
  j.add("drafter", json_of(means.drafter)).add("reduction", json_of(means.reduction));
  j.add("update", json_of(means.update)).add("drafters", uint64_t{means.drafters});
  return j;
}

service_means read_service_times(const std::filesystem::path& run) {
  const auto file = run / "summary.json";
  service_means m;
  try {
    std::ifstream in(file);
    const auto times = nlohmann::json::parse(in).at("this_process").at("service_times");
    const auto read = [&](const char* name, service_mean& into) {
      into.seconds = times.at(name).at("mean_s").get<double>();
      into.count = times.at(name).at("count").get<uint64_t>();
      if (!(into.seconds >= 0 && into.seconds < 1e9)) throw std::runtime_error(name);
    };
    read("target", m.target);
    read("postprocess", m.postprocess);
    read("drafter", m.drafter);
    read("reduction", m.reduction);
    read("update", m.update);
    m.drafters = times.at("drafters").get<uint32_t>();
  } catch (const std::exception& problem) {
    throw error(std::string("no service times can be read: ") + problem.what(),
                file.string(),
                "name the folder of a run that this version has finished or stopped");
  }
  if (m.target.count == 0 || m.drafter.count == 0 || m.update.count == 0 || m.drafters == 0)
    throw error("the run was too short to measure its lanes, or ran without targets",
                file.string(),
                "name a longer one, or measure with --probe");
  return m;
}

probe_result probe(training_setup setup, double seconds) {
  for (const auto* lanes : {&setup.config.layout.targets, &setup.config.layout.drafters})
    for (const std::string& lane : *lanes)
      if (!parse_lane(lane).node.empty())
        throw error("a probe measures lanes of this host, not " + lane,
                    "layout",
                    "probe with the lanes that are here");
  pipeline_parts parts = std::move(setup.parts);
  for (const auto& trainer : setup.trainers)
    parts.drafters.push_back(work_of(trainer, [](drafter_trainer&) -> uint64_t {
      throw std::runtime_error("a probe has no checkpoint to go back to");
    }));
  for (drafter_work& drafter : parts.drafters)
    drafter.snapshot = [](const save_request&) { return [] {}; };
  parts.saves = {};
  parts.profile_interval = 0;
  parts.progress = false;
  const auto meter = service_meter::attach(parts);
  std::unique_ptr<alarm> clock;
  parts.on_started = [&](std::function<void()> stop) {
    clock = std::make_unique<alarm>(seconds, std::move(stop));
  };
  pipeline_system_config system_config(false);
  caf::actor_system system(system_config);
  const pipeline_result result = run_pipeline(system, std::move(parts));
  clock.reset();
  if (result.outcome.status == run_status::failed)
    throw std::runtime_error("the probe failed: " + result.outcome.reason);
  probe_result out{meter->means(result.mailboxes), result.totals.seconds, result.totals.batches};
  if (out.means.target.count == 0 || out.means.drafter.count == 0 || out.means.update.count == 0)
    throw error(
        fmt::format(
            "{} batches in {:.0f} s are too few to measure the lanes", out.batches, out.seconds),
        "--probe-seconds",
        "give it longer, up to 120");
  return out;
}

}  // namespace dflash

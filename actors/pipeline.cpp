#include "actors/pipeline.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <caf/io/all.hpp>

#include <caf/openssl/all.hpp>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "actors/checkpointer.hpp"
#include "actors/coordinator.hpp"
#include "actors/dispatcher.hpp"
#include "actors/drafter_train.hpp"
#include "actors/inspector.hpp"
#include "actors/loader.hpp"
#include "actors/profiler.hpp"
#include "actors/runtime/caf_tls.hpp"
#include "actors/supervision.hpp"
#include "config/error.hpp"
#include "device/slot_memory.hpp"

namespace dflash {

namespace {

constexpr int64_t fair_turn = 50;  // messages of one actor before the next one's turn
constexpr caf::atom_value inspector_name = caf::atom("inspector");

metrics_sink console_sink() {
  const auto line = std::make_shared<progress_line>();
  return {"the console",
          [line](const metrics_line& m) { line->show(m.progress); },
          [line] { line->finish(); }};
}

std::vector<sink_view> views_of(const std::vector<std::shared_ptr<sink_thread>>& sinks) {
  std::vector<sink_view> views;
  for (const auto& sink : sinks) views.push_back(sink->view());
  return views;
}

// The actors in the order of their dependencies, and what they are connected by.
class builder {
public:
  builder(caf::actor_system& system, pipeline_parts& parts)
      : system_(system),
        parts_(parts),
        registry_(std::make_shared<mailbox_registry>()),
        faults_(parts.faults),
        steps_(std::make_shared<std::atomic<uint64_t>>(parts.first_step)),
        totals_(std::make_shared<run_totals>()),
        record_(std::make_shared<stage_record>(
            parts.trace, *parts.plan, std::max(1U, parts.limits.drafters))) {
    if (parts.progress) sinks_.push_back(std::make_shared<sink_thread>(console_sink()));
    for (const metrics_sink& sink : parts.sinks)
      sinks_.push_back(std::make_shared<sink_thread>(sink));
    if (!parts.watch) return;
    parts.watch->observe(registry_, [sinks = sinks_] { return views_of(sinks); });
    // Not the watch's own: it would hold itself.
    sinks_.push_back(std::make_shared<sink_thread>(
        metrics_sink{"the page", [watch = std::weak_ptr(parts.watch)](const metrics_line& line) {
                       if (const auto w = watch.lock()) w->note(line);
                     }}));
  }

  // The profiler is gone: what it recorded, with the trace on disk.
  actor_profile take_stages() {
    try {
      record_->write_trace(true);
    } catch (const std::exception& e) {
      spdlog::error("the trace cannot be written: {}", e.what());
    }
    if (record_->lacks_trace())
      spdlog::warn("no trace: none of the steps of profile.trace was trained here");
    return record_->whole();
  }

  // Waits for what the sinks still have to write.
  std::vector<sink_view> close_sinks() {
    for (const auto& sink : sinks_) sink->close();
    return views_of(sinks_);
  }

  std::shared_ptr<const pipeline_links> build(const caf::actor& observer) {
    auto links = std::make_shared<pipeline_links>();
    if (parts_.publish) links->inspector = inspector();
    if (profiles()) links->profiler = profiler();
    links->coordinator = coordinator(observer);
    links->metrics = metrics();
    links->checkpointer = checkpointer();
    if (parts_.evaluate) links->evaluator = evaluator();
    links->loader = loader();
    links->dispatcher = dispatcher(first_life());
    for (uint32_t i = 0; i < limits().targets; ++i) links->targets.push_back(target(i));
    for (uint32_t i = 0; i < limits().drafters; ++i)
      links->drafters.push_back(drafter(i, first_life().drafter));
    links->drafter_lives.resize(limits().drafters);
    for (uint32_t i = 0; i < limits().targets + limits().readers; ++i)
      links->postprocess.push_back(postprocess(i));
    return links;
  }

  const mailbox_registry& registry() const { return *registry_; }
  const run_totals& totals() const { return *totals_; }
  uint64_t steps() const { return steps_->load(); }

private:
  bool profiles() const { return parts_.profile || parts_.profile_interval > 0 || parts_.trace; }
  const pipeline_limits& limits() const { return parts_.limits; }
  actor_identity named(std::string name, uint32_t index = 0, uint64_t limit_bytes = 0) const {
    return identify(registry_, std::move(name), index, limit_bytes, faults_);
  }

  // Null: it is here.
  const away_lane* away_of(group_id group) const {
    const auto& lanes = group.what == part::target ? parts_.targets_away : parts_.drafters_away;
    if (group.what != part::target && group.what != part::drafter) return nullptr;
    if (group.index >= lanes.size() || !lanes[group.index].place) return nullptr;
    return &lanes[group.index];
  }

  // The next life of a group; called by the coordinator in its own thread.
  void spawn_group(pipeline_links& links, group_id group, const next_life& next) {
    switch (group.what) {
      case part::loader:
        links.loader = loader();
        if (limits().readers > 0) links.postprocess.back() = postprocess(limits().targets);
        return;
      case part::target:
        links.targets.at(group.index) = target(group.index);
        links.postprocess.at(group.index) = postprocess(group.index);
        return;
      case part::checkpointer:
        links.checkpointer = checkpointer();
        return;
      case part::evaluator:
        links.evaluator = evaluator();
        return;
      case part::metrics:
        links.metrics = metrics();
        return;
      case part::profiler:
        links.profiler = profiler();
        return;
      case part::inspector:
        links.inspector = inspector();
        return;
      case part::dispatcher:
        links.dispatcher = dispatcher(next);
        return;
      case part::drafter:
        links.drafters.at(group.index) = drafter(group.index, next.drafter);
        return;
    }
  }

  run_inspector_actor inspector() {
    auto actor = spawn_inspector(
        system_,
        runs_as::detached,  // while all of the scheduler's threads are taken
        named("inspector"),
        {parts_.run, parts_.plan->total_steps(), steps_, parts_.details, parts_.door, profiles()});
    try {
      parts_.publish(actor);
    } catch (...) {
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
      throw;
    }
    // For look-ups by name, from other nodes too.
    system_.registry().put(inspector_name, caf::actor_cast<caf::strong_actor_ptr>(actor));
    return actor;
  }

  profiler_actor profiler() {
    const profiler_options o{parts_.profile_interval, stderr, record_};
    return spawn_profiler(
        system_, parts_.trace ? runs_as::detached : runs_as::scheduled, named("profiler"), o);
  }

  std::shared_ptr<slot_pool> slots_on(at::Device device, int64_t slots) const {
    return slot_pool::make(
        slots,
        limits().batch_bytes,
        device.is_cpu() ? nullptr : std::make_unique<slot_memory>(device, slots));
  }
  at::Device target_device(uint32_t i) const {
    return i < parts_.target_devices.size() ? parts_.target_devices[i] : at::Device(at::kCPU);
  }
  // `first`, then those of the drafters; nothing where all is on the CPU.
  std::vector<at::Device> with_drafters(at::Device first) const {
    std::vector<at::Device> all{first};
    for (const at::Device& d : parts_.drafter_devices)
      if (std::find(all.begin(), all.end(), d) == all.end()) all.push_back(d);
    if (all.size() == 1 && first.is_cpu()) all.clear();
    return all;
  }
  uint64_t first_k() const {
    return parts_.first_step == 0 ? 0 : parts_.plan->step(parts_.first_step - 1).last_k;
  }
  next_life first_life() const {
    next_life first;
    first.next_k = first_k();
    first.drafter.step = parts_.first_step;
    return first;
  }

  coordinator_actor coordinator(const caf::actor& observer) {
    coordinator_options o;
    o.commits = commit_options{.plan = *parts_.plan,
                               .drafters = limits().drafters,
                               .first_step = parts_.first_step,
                               .skipped = parts_.skipped_steps,
                               .losses = parts_.losses,
                               .skip_spikes = parts_.skip_spikes};
    o.saves = parts_.saves;
    o.saves.total_steps = parts_.plan->total_steps();
    o.saves.first_step = parts_.first_step;
    o.give_up_evaluation = parts_.give_up_evaluation;
    o.saved_step = parts_.saved_step;
    o.dropped = parts_.dropped;
    o.observer = observer;
    o.spawn_group = [this](pipeline_links& links, group_id group, const next_life& next) {
      spawn_group(links, group, next);
    };
    o.restart = parts_.restart;
    o.restart_of = [this](group_id group) {
      const away_lane* const away = away_of(group);
      return away != nullptr ? parts_.restart_away : parts_.restart;
    };
    o.on_links = parts_.on_links;
    o.stage_deadline = parts_.stage_deadline;
    o.stall_floor = parts_.stall_floor;
    o.profile = profiles();
    // Without fault points: nothing stands above it.
    return spawn_coordinator(system_, identify(registry_, "coordinator"), std::move(o));
  }

  checkpointer_actor checkpointer() {
    return spawn_checkpointer(
        system_, runs_as::detached, named("checkpointer"), {parts_.record, profiles()});
  }

  evaluator_actor evaluator() {
    return spawn_evaluator(system_,
                           runs_as::detached,
                           named("evaluator"),
                           {parts_.evaluate, parts_.eval_threads, profiles()});
  }

  metrics_actor metrics() {
    metrics_options o;
    o.noted_evaluation = parts_.noted_evaluation;
    o.file = parts_.metrics_file;
    o.first_step = parts_.first_step;
    o.total_steps = parts_.plan->total_steps();
    if (parts_.store) o.capture_steps = parts_.plan->steps_per_epoch();
    o.drafters = limits().drafters;
    o.terms = parts_.terms;
    o.sinks = sinks_;
    o.target_flops = parts_.target_flops;
    o.drafter_flops = parts_.drafter_flops;
    o.peak_flops = parts_.peak_flops;
    o.steps = steps_;
    o.totals = totals_;
    o.profile = profiles();
    return spawn_metrics(system_, named("metrics"), std::move(o));
  }

  loader_actor loader() {
    loader_options o;
    o.source = parts_.source;
    o.first_k = first_k();
    o.end_k = parts_.plan->total_batches();
    o.store = parts_.store;
    o.read = parts_.read_hidden;
    o.shape = parts_.shape;
    o.lane = limits().targets;
    o.profile = profiles();
    if (limits().readers > 0) o.slots = slots_on(at::kCPU, limits().capture_slots);
    return spawn_loader(system_, runs_as::detached, named("loader"), std::move(o));
  }

  dispatcher_actor dispatcher(const next_life& next) {
    dispatch_options o;
    o.first_k = next.next_k;
    o.dropped = next.dropped;
    o.end_k = parts_.plan->total_batches();
    o.targets = limits().targets;
    o.drafters = limits().drafters;
    o.batch_bytes = limits().batch_bytes;
    o.read_ahead = limits().targets + limits().readers + 2;
    return spawn_dispatcher(system_, named("dispatcher"), o, profiles());
  }

  target_actor target(uint32_t i) {
    target_options o;
    o.capture = parts_.targets[i];
    o.shape = parts_.shape;
    o.device = target_device(i);
    o.slots = slots_on(o.device, limits().capture_slots);
    o.threads = parts_.target_threads;
    o.profile = profiles();
    if (i < parts_.target_stages.size()) o.inner = parts_.target_stages[i];
    if (const away_lane* const away = away_of({part::target, i})) {
      o.begin = away->begin;
      registry_->set_place(fmt::format("target_forward {}", i), away->place);
    }
    return spawn_target(
        system_, runs_as::detached, named(fmt::format("target_forward {}", i), i), std::move(o));
  }

  drafter_actor drafter(uint32_t i, const life_of_drafter& life) {
    drafter_options o;
    o.drafters = limits().drafters;
    o.plan = parts_.plan;
    o.work = parts_.drafters[i];
    o.life = life;
    if (!parts_.drafter_devices.empty()) o.devices = with_drafters(parts_.drafter_devices.at(i));
    o.slots = slots_on(o.device(), limits().drafter_batches);
    o.metrics_every = parts_.metrics_every;
    o.threads = parts_.drafter_threads;
    o.profile = profiles();
    if (const away_lane* const away = away_of({part::drafter, i}))
      registry_->set_place(fmt::format("drafter_train {}", i), away->place);
    return spawn_drafter(system_,
                         runs_as::detached,
                         named(fmt::format("drafter_train {}", i), i, limits().drafter_bytes()),
                         std::move(o));
  }

  postprocess_actor postprocess(uint32_t i) {
    postprocess_options o;
    o.shape = parts_.shape;
    o.drafter_dtype = parts_.drafter_dtype;
    o.store = parts_.store;
    o.noise = parts_.noise;
    o.seed = parts_.seed;
    o.window = parts_.window;
    o.block_size = parts_.block_size;
    o.finite = parts_.finite;
    o.devices = with_drafters(target_device(i));
    o.profile = profiles();
    return spawn_postprocess(
        system_,
        runs_as::detached,
        named(fmt::format("postprocess {}", i), i, limits().postprocess_bytes()),
        std::move(o));
  }

  caf::actor_system& system_;
  pipeline_parts& parts_;
  std::shared_ptr<mailbox_registry> registry_;
  fault_points faults_;
  std::shared_ptr<std::atomic<uint64_t>> steps_;
  std::shared_ptr<run_totals> totals_;
  std::shared_ptr<stage_record> record_;
  std::vector<std::shared_ptr<sink_thread>> sinks_;
};

// The coordinator died before it could tell anybody: everyone else goes too.
void kill_all(const pipeline_links& links) {
  for (const group_id group : groups_of(links))
    for (const group_member& m : members_of(links, group))
      caf::anon_send_exit(m.actor, caf::exit_reason::kill);
}

}  // namespace

pipeline_system_config::pipeline_system_config(bool with_network,
                                               const std::vector<std::string>& caf_options) {
  const network_settings usual;
  set_up(with_network ? &usual : nullptr, caf_options);
}

pipeline_system_config::pipeline_system_config(const network_settings& network,
                                               const std::vector<std::string>& caf_options) {
  set_up(&network, caf_options);
}

void pipeline_system_config::set_up(const network_settings* network,
                                    const std::vector<std::string>& caf_options) {
  // Two at least: an actor that is stuck must not hide all others.
  const auto cores = std::max(2U, std::thread::hardware_concurrency());
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", static_cast<int64_t>(cores));
  set("scheduler.max-throughput", fair_turn);
  add_message_types<caf::id_block::dflash>();
  add_message_types<caf::id_block::dflash_nodes>();
  if (network != nullptr) {
    set("middleman.heartbeat-interval", caf::timespan{network->heartbeat});
    set("middleman.connection-timeout", caf::timespan{network->timeout});
    load<caf::io::middleman>();
    if (network->security.tls()) {
      openssl_cafile = network->security.ca.string();
      openssl_certificate = network->security.certificate.string();
      openssl_key = network->security.key.string();
      mend_caf_tls(network->timeout);
      load<caf::openssl::manager>();
    }
  }
  if (caf_options.empty()) return;
  std::vector<std::string> arguments;
  for (const std::string& option : caf_options)  // its switches take no value
    arguments.push_back("--" +
                        (option.ends_with("=true") ? option.substr(0, option.size() - 5) : option));
  std::istringstream no_file;
  if (const auto problem = parse(arguments, no_file))
    throw error("CAF refuses a setting: " + caf::to_string(problem),
                "--caf." + fmt::format("{}", fmt::join(caf_options, " --caf.")),
                "its manual lists them: groups scheduler, middleman, work-stealing, stream");
  if (!remainder.empty() || cli_helptext_printed)
    throw error("CAF does not know the setting",
                "--caf." + (remainder.empty() ? caf_options.front() : remainder.front()),
                "its manual lists them: groups scheduler, middleman, work-stealing, stream");
}

pipeline_result run_pipeline(caf::actor_system& system, pipeline_parts parts) {
  DFLASH_CHECK(parts.plan && parts.targets.size() == parts.limits.targets &&
                   parts.drafters.size() == parts.limits.drafters &&
                   parts.limits.readers == (parts.store || parts.read_hidden ? 1U : 0U) &&
                   parts.targets.empty() == bool(parts.read_hidden) &&
                   (parts.saves.eval_every == 0 || parts.evaluate) &&
                   parts.limits.batch_bytes == parts.shape.bytes(),
               "parts of a pipeline that do not fit each other");
  caf::scoped_actor self{system};
  // Who must go if the coordinator dies.
  std::mutex mutex;
  std::shared_ptr<const pipeline_links> newest;
  parts.on_links = [&, tell = std::move(parts.on_links)](const auto& links) {
    {
      const std::lock_guard guard(mutex);
      newest = links;
    }
    if (tell) tell(links);
  };
  builder b(system, parts);
  pipeline_result result;
  newest = b.build(self);
  const coordinator_actor coordinator = newest->coordinator;
  self->monitor(coordinator);
  caf::anon_send(coordinator, start_run{newest});
  if (parts.on_started)
    parts.on_started([coordinator] { caf::anon_send(coordinator, stop_request{}); });
  self->receive([&](const run_outcome& outcome) { result.outcome = outcome; },
                [&](const caf::down_msg&) {
                  const std::lock_guard guard(mutex);
                  kill_all(*newest);
                  if (newest->metrics) self->wait_for(newest->metrics);  // it writes the totals
                  result.outcome.steps = b.steps();
                  result.outcome.saved_step = parts.saved_step;
                  result.outcome.reason = "coordinator: " + b.registry().failure("coordinator");
                });
  system.registry().erase(inspector_name);
  result.sinks = b.close_sinks();
  if (result.outcome.stuck.empty()) result.stages = b.take_stages();
  result.totals = b.totals();
  result.mailboxes = b.registry().rows();
  return result;
}

}  // namespace dflash

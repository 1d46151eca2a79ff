#include "actors/pipeline.hpp"

#include <fmt/format.h>
#include <caf/io/all.hpp>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "actors/coordinator.hpp"
#include "actors/dispatcher.hpp"
#include "actors/drafter_train.hpp"
#include "actors/inspector.hpp"
#include "actors/loader.hpp"
#include "actors/profiler.hpp"
#include "config/error.hpp"

namespace dflash {

namespace {

constexpr int64_t fair_turn = 50;  // messages of one actor before the next one's turn
constexpr std::chrono::milliseconds heartbeat{500};
constexpr std::chrono::seconds connection_timeout{4};

// The actors in the order of their dependencies, and what they are connected by.
class builder {
public:
  builder(caf::actor_system& system, pipeline_parts& parts)
      : system_(system),
        parts_(parts),
        registry_(std::make_shared<mailbox_registry>()),
        steps_(std::make_shared<std::atomic<uint64_t>>(parts.first_step)),
        totals_(std::make_shared<run_totals>()) {}

  std::shared_ptr<const pipeline_links> build(const caf::actor& observer) {
    auto links = std::make_shared<pipeline_links>();
    links_ = links.get();
    if (parts_.publish) {
      links->inspector = spawn_inspector(system_,
                                         identify(registry_, "inspector"),
                                         {parts_.run, parts_.plan->total_steps(), steps_});
      try {
        parts_.publish(links->inspector);
      } catch (...) {
        caf::anon_send_exit(links->inspector, caf::exit_reason::user_shutdown);
        throw;
      }
    }
    if (parts_.profile_interval > 0) {
      links->profiler =
          spawn_profiler(system_, identify(registry_, "profiler"), {parts_.profile_interval});
      stages_ = stage_sink(links->profiler);
    }
    links->coordinator = coordinator(observer);
    links->metrics = metrics();
    links->loader = loader();
    links->dispatcher = dispatcher();
    for (uint32_t i = 0; i < limits().targets; ++i) links->targets.push_back(target(i));
    for (uint32_t i = 0; i < limits().drafters; ++i) links->drafters.push_back(drafter(i));
    for (uint32_t i = 0; i < limits().targets + limits().readers; ++i)
      links->postprocess.push_back(postprocess(i));
    return links;
  }

  const mailbox_registry& registry() const { return *registry_; }
  const run_totals& totals() const { return *totals_; }

private:
  const pipeline_limits& limits() const { return parts_.limits; }
  std::shared_ptr<slot_pool> capture_slots() const {
    return slot_pool::make(limits().capture_slots, limits().batch_bytes);
  }
  uint64_t first_k() const {
    return parts_.first_step == 0 ? 0 : parts_.plan->step(parts_.first_step - 1).last_k;
  }

  coordinator_actor coordinator(const caf::actor& observer) {
    coordinator_options o;
    o.commits =
        commit_options{*parts_.plan, limits().drafters, parts_.first_step, parts_.save_every};
    o.saved_step = parts_.saved_step;
    o.skipped_steps = parts_.skipped_steps;
    o.dropped = parts_.dropped;
    o.observer = observer;
    return spawn_coordinator(system_, identify(registry_, "coordinator"), std::move(o));
  }

  metrics_actor metrics() {
    metrics_options o;
    o.file = parts_.metrics_file;
    o.first_step = parts_.first_step;
    o.total_steps = parts_.plan->total_steps();
    o.targets = limits().targets;
    o.drafters = limits().drafters;
    o.with_kl = parts_.with_kl;
    o.progress = parts_.progress;
    o.steps = steps_;
    o.totals = totals_;
    return spawn_metrics(system_, identify(registry_, "metrics"), std::move(o));
  }

  loader_actor loader() {
    loader_options o;
    o.source = parts_.source;
    o.first_k = first_k();
    o.end_k = parts_.plan->total_batches();
    o.store = parts_.store;
    o.shape = parts_.shape;
    o.lane = limits().targets;
    if (parts_.store) o.slots = capture_slots();
    o.stages = stages_;
    return spawn_loader(system_, runs_as::detached, identify(registry_, "loader"), std::move(o));
  }

  dispatcher_actor dispatcher() {
    dispatch_options o;
    o.first_k = first_k();
    o.end_k = parts_.plan->total_batches();
    o.targets = limits().targets;
    o.drafters = limits().drafters;
    o.batch_bytes = limits().batch_bytes;
    o.read_ahead = limits().targets + limits().readers + 2;
    return spawn_dispatcher(system_, identify(registry_, "dispatcher"), o);
  }

  target_actor target(uint32_t i) {
    target_options o;
    o.capture = parts_.targets[i];
    o.shape = parts_.shape;
    o.slots = capture_slots();
    o.threads = parts_.target_threads;
    o.stages = stages_;
    return spawn_target(system_,
                        runs_as::detached,
                        identify(registry_, fmt::format("target_forward {}", i), i),
                        std::move(o));
  }

  drafter_actor drafter(uint32_t i) {
    drafter_options o;
    o.drafters = limits().drafters;
    o.plan = parts_.plan;
    o.first_step = parts_.first_step;
    o.work = parts_.drafters[i];
    o.slots = slot_pool::make(limits().drafter_batches, limits().batch_bytes);
    drafter_slots_.push_back(o.slots);
    o.metrics_every = parts_.metrics_every;
    o.threads = parts_.drafter_threads;
    o.stages = stages_;
    return spawn_drafter(
        system_,
        runs_as::detached,
        identify(registry_, fmt::format("drafter_train {}", i), i, limits().drafter_bytes()),
        std::move(o));
  }

  postprocess_actor postprocess(uint32_t i) {
    postprocess_options o;
    o.shape = parts_.shape;
    o.drafter_dtype = parts_.drafter_dtype;
    o.drafter_slots = drafter_slots_;
    o.store = parts_.store;
    o.noise = parts_.noise;
    o.seed = parts_.seed;
    o.window = parts_.window;
    o.block_size = parts_.block_size;
    o.finite = parts_.finite;
    o.stages = stages_;
    return spawn_postprocess(
        system_,
        runs_as::detached,
        identify(registry_, fmt::format("postprocess {}", i), i, limits().postprocess_bytes()),
        std::move(o));
  }

  caf::actor_system& system_;
  pipeline_parts& parts_;
  std::shared_ptr<mailbox_registry> registry_;
  std::shared_ptr<std::atomic<uint64_t>> steps_;
  std::shared_ptr<run_totals> totals_;
  std::vector<std::shared_ptr<slot_pool>> drafter_slots_;  // [M]
  stage_sink stages_;
  pipeline_links* links_ = nullptr;
};

void start(const pipeline_links& links, const start_run& m) {
  // Those who only listen first, then the flow from its end to its beginning.
  caf::anon_send(links.coordinator, m);
  caf::anon_send(links.metrics, m);
  for (const auto& drafter : links.drafters) caf::anon_send(drafter, m);
  for (const auto& post : links.postprocess) caf::anon_send(post, m);
  caf::anon_send(links.dispatcher, m);
  caf::anon_send(links.loader, m);
  for (const auto& target : links.targets) caf::anon_send(target, m);
}

}  // namespace

pipeline_system_config::pipeline_system_config(bool with_network) {
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", static_cast<int64_t>(cores));
  set("scheduler.max-throughput", fair_turn);
  add_message_types<caf::id_block::dflash>();
  if (with_network) {
    set("middleman.heartbeat-interval", caf::timespan{heartbeat});
    set("middleman.connection-timeout", caf::timespan{connection_timeout});
    load<caf::io::middleman>();
  }
}

pipeline_result run_pipeline(caf::actor_system& system, pipeline_parts parts) {
  DFLASH_CHECK(parts.plan && parts.targets.size() == parts.limits.targets &&
                   parts.drafters.size() == parts.limits.drafters &&
                   parts.limits.readers == (parts.store ? 1U : 0U) &&
                   parts.limits.batch_bytes == parts.shape.bytes(),
               "parts of a pipeline that do not fit each other");
  caf::scoped_actor self{system};
  builder b(system, parts);
  pipeline_result result;
  {
    auto links = b.build(self);
    start(*links, start_run{links});
    if (parts.on_started)
      parts.on_started(
          [coordinator = links->coordinator] { caf::anon_send(coordinator, stop_request{}); });
  }
  self->receive([&](const run_outcome& outcome) { result.outcome = outcome; });
  result.totals = b.totals();
  result.mailboxes = b.registry().rows();
  return result;
}

}  // namespace dflash

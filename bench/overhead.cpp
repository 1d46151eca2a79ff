// What watching costs: the whole pipeline with a real target and a real drafter, in segments of a
// few steps that take turns: nothing watched, metrics of every batch, profiler, trace, inspect,
// page open. Costs are processor time of the process a step, clients included, as shares of that
// with nothing watched. Other programs only ever add to it: the lower quartile of all steps of a
// kind counts. inspect and page look more often than they do, and their costs are divided by that.
// The last line is JSON.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <httplib.h>

#include "actors/pipeline.hpp"
#include "bench/cpu_time.hpp"
#include "data/random.hpp"
#include "model/drafter.hpp"
#include "model/drafter_step.hpp"
#include "model/target.hpp"
#include "observe/jsonl.hpp"
#include "observe/page_server.hpp"
#include "observe/table.hpp"

namespace {

using namespace dflash;
using bench::cpu_seconds;
namespace fs = std::filesystem;

struct options {
  std::string model = ".deps/models/SmolLM2-135M-Instruct";
  int rounds = 12;
  double minutes = 1e9;  // no round begins after them
  int steps = 6;         // of a segment; the first is not counted
  int64_t row_tokens = 512;
  int64_t anchors = 16;
};

double lower_quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 4);
}

// How much more often than 10 Hz and 1 Hz.
constexpr int inspect_factor = 10, page_factor = 20;

// Random text: what is watched does not depend on it.
token_documents random_text(int64_t vocab, int64_t tokens) {
  token_documents text;
  const random_stream stream{7, random_domain::noise, 0};
  for (int d = 0; d < 8; ++d) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; i += 4)
      for (const uint32_t word : stream.block(static_cast<uint64_t>(d * tokens + i)))
        ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(vocab)));
    ids.resize(static_cast<size_t>(tokens));
    text.append(ids, std::vector<uint8_t>(ids.size(), 1));
  }
  return text;
}

// Does something again and again while it lives. What it looks with is made and ended in its
// thread: a thread that has touched an actor system keeps that one's logger, whose end the system
// waits for.
class client {
public:
  client(std::chrono::milliseconds every, std::function<std::function<void()>()> make_look)
      : thread_([this, every, make_look = std::move(make_look)] {
          const std::function<void()> look = make_look();
          while (!end_) {
            look();
            std::this_thread::sleep_for(every);
          }
        }) {}
  ~client() {
    end_ = true;
    thread_.join();
  }
  client(const client&) = delete;
  client& operator=(const client&) = delete;

private:
  std::atomic<bool> end_{false};
  std::thread thread_;
};

class bench {
public:
  explicit bench(const options& o) : o_(o) {
    dtype_ = choose_compute_dtype("auto");
    model_ = target::load(o.model, dtype_);
    draft_section draft;
    draft.layers = 3;
    draft.taps = {1, 8, 14, 20, 27};
    draft.mask_token_id = static_cast<int64_t>(model_->config().vocab) - 1;
    shape_ = make_drafter_config(draft, model_->config());
    source_ = std::make_shared<const batch_source>(
        token_set(random_text(model_->config().vocab, o.row_tokens)), o.row_tokens, o.anchors, 1);
    loss_section loss;
    optim_section optim;
    optim.schedule = "constant";
    optim.warmup = {.share = 0, .steps = 0};
    const drafter_weights start = init_drafter(shape_, "random", *model_, 1, 0.2, o.model);
    for (auto& trainer : trainers_)
      trainer = std::make_shared<drafter_trainer>(
          shape_, loss, optim, start, model_, dtype_, uint64_t{1} << 40);
  }

  // Seconds of processor time of each step.
  std::vector<double> segment(const std::string& what) {
    const auto stages = std::make_shared<stage_timer>();
    pipeline_parts p;
    p.source = source_;
    p.plan.emplace(source_->rows(), 1, 1, 1, o_.steps);
    p.shape = {o_.row_tokens, model_->config().hidden, 5, false, scalar_type(dtype_)};
    p.drafter_dtype = p.shape.dtype;
    p.limits = derive_limits(1, 0, 1, p.shape.bytes(), 0);
    p.block_size = shape_.block_size;
    p.progress = false;
    p.target_stages = {stages};
    p.targets.push_back([this, stages](const batch& b) {
      return model_->capture(b.input_ids, b.doc_offsets, shape_.taps, false, stages.get()).taps;
    });
    p.metrics_every = what == "metrics_every_1" ? 1 : uint64_t{1} << 40;
    p.profile = profiles(what);
    const fs::path file = fs::temp_directory_path() / ("dflash_overhead_trace.json");
    if (what == "trace") p.trace = trace_options{{1, static_cast<uint64_t>(o_.steps)}, file};
    std::vector<double> ends;
    // A timer that is on stays on: its trainer is another one.
    drafter_work work = work_of(
        trainers_[p.profile ? 1 : 0],
        [](drafter_trainer&) { return uint64_t{0}; },
        [](const save_request&, const trainer_snapshot&) {});
    work.update = [&, inner = work.update](
                      const at::Tensor& reduced, double weight, uint64_t step, bool skip) {
      const auto report = inner(reduced, weight, step, skip);
      ends.push_back(cpu_seconds());
      return report;
    };
    p.drafters.push_back(std::move(work));
    p.watch = std::make_shared<run_watch>(watch_options{"bench", 0, p.plan->total_steps()});

    pipeline_system_config config(true);
    caf::actor_system system(config);
    std::unique_ptr<page_server> server;
    std::unique_ptr<client> looks;
    inspector_actor inspector;
    p.publish = [&](const inspector_actor& actor) { inspector = actor; };
    if (what == "page") {
      server = std::make_unique<page_server>(
          "127.0.0.1",
          0,
          "bench",
          page_sources{[w = p.watch] { return status_json(w->view()); },
                       [w = p.watch] { return prometheus_text(w->view()); }});
      looks = std::make_unique<client>(std::chrono::milliseconds(1000 / page_factor),
                                       [port = server->port()] {
                                         return [port] {
                                           httplib::Client page("127.0.0.1", port);
                                           if (!page.Get("/status.json"))
                                             throw std::runtime_error("the page does not answer");
                                         };
                                       });
    }
    p.on_started = [&](const std::function<void()>&) {
      if (what != "inspect_10hz") return;
      const auto port = system.middleman().publish(inspector, 0, "127.0.0.1");
      if (!port) throw std::runtime_error("cannot publish");
      looks = std::make_unique<client>(std::chrono::milliseconds(100 / inspect_factor),
                                       [port = *port] { return remote_look(port); });
    };
    const auto result = run_pipeline(system, std::move(p));
    looks = nullptr;
    inspector = nullptr;
    if (result.outcome.status != run_status::completed)
      throw std::runtime_error("the run failed: " + result.outcome.reason);
    std::error_code ignored;
    fs::remove(file, ignored);
    if (profiles(what)) {
      double stages = 0;
      for (const auto& row : result.stages.rows()) stages += static_cast<double>(row.stats.count);
      stages_a_step_ = stages / o_.steps;
    }
    std::vector<double> steps;
    for (size_t i = 1; i < ends.size(); ++i) steps.push_back(ends[i] - ends[i - 1]);
    return steps;
  }

  // Of all actors, when they are profiled.
  double stages_a_step() const { return stages_a_step_; }

private:
  static bool profiles(const std::string& what) { return what == "profiler" || what == "trace"; }

  // `dflash inspect --watch` of another process, in a system of its own.
  static std::function<void()> remote_look(uint16_t port) {
    struct remote {
      pipeline_system_config config{true};
      caf::actor_system system{config};
      caf::scoped_actor self{system};
      inspector_actor inspector;
    };
    const auto r = std::make_shared<remote>();
    const auto found = r->system.middleman().remote_actor<inspector_actor>("127.0.0.1", port);
    if (!found) throw std::runtime_error("cannot connect");
    r->inspector = *found;
    return [r] {
      r->self->request(r->inspector, caf::duration{std::chrono::seconds(5)}, inspect_atom_v)
          .receive([](const system_report&) {}, [](const caf::error&) {});
    };
  }

  options o_;
  double stages_a_step_ = 0;
  compute_dtype dtype_ = compute_dtype::fp32;
  std::shared_ptr<const target> model_;
  drafter_config shape_;
  std::shared_ptr<const batch_source> source_;
  std::array<std::shared_ptr<drafter_trainer>, 2> trainers_;  // plain, profiled
};

// Of a scope with a mark in it, of a timer that is off.
double seconds_of_a_stage_off() {
  stage_timer timer;
  constexpr int calls = 20'000'000;
  const double began = cpu_seconds();
  for (int i = 0; i < calls; ++i) {
    asm volatile("" : : "r"(&timer) : "memory");  // it might be on, for all the compiler knows
    const auto scope = timer.within("scope");
    timer.mark("mark");
  }
  return (cpu_seconds() - began) / calls;
}

// Of one that is on, with the profiler's booking of it: what the profiler costs, free of the noise
// of whole steps.
double seconds_of_a_stage_on() {
  stage_timer timer;
  timer.turn_on();
  stage_record record({}, step_plan(8, 1, 1, 1, 8), 1);
  const mailbox_registry registry;
  constexpr int batches = 20'000, marks = 31;
  const double began = cpu_seconds();
  for (int i = 0; i < batches; ++i) {
    {
      const auto scope = timer.within("scope");
      for (int m = 0; m < marks; ++m) timer.mark("mark");
    }
    record.add({"drafter_train 0", 0, stage_report::none, 0, timer.take(), {}}, registry);
  }
  return (cpu_seconds() - began) / (batches * (marks + 1));
}

// Steps of every `parts`-th round, from `part` on.
std::vector<double> pooled(const std::vector<std::vector<double>>& rounds,
                           size_t part,
                           size_t parts) {
  std::vector<double> all;
  for (size_t i = part; i < rounds.size(); i += parts)
    all.insert(all.end(), rounds[i].begin(), rounds[i].end());
  return all;
}

std::string percent(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f %%", 100 * x);
  return text;
}

int run(const options& o) {
  const std::vector<std::string> kinds = {
      "metrics_every_1", "profiler", "trace", "inspect_10hz", "page"};
  bench b(o);
  b.segment("nothing");  // warm
  // By round.
  std::map<std::string, std::vector<std::vector<double>>> steps;
  std::vector<std::vector<double>> plain;
  const auto start = std::chrono::steady_clock::now();
  int rounds = 0;
  while (rounds < o.rounds && (rounds == 0 || std::chrono::steady_clock::now() - start <
                                                  std::chrono::duration<double>(60 * o.minutes))) {
    ++rounds;
    std::vector<double> without;
    for (const std::string& kind : kinds) {
      steps[kind].push_back(b.segment(kind));
      const std::vector<double> between = b.segment("nothing");
      without.insert(without.end(), between.begin(), between.end());
    }
    plain.push_back(std::move(without));
  }
  const double step_s = lower_quartile(pooled(plain, 0, 1));
  text_table table({{"watched", align::left}, {"share of a step"}, {"of a third of the rounds"}});
  json_object json;
  for (const std::string& kind : kinds) {
    const int factor = kind == "inspect_10hz" ? inspect_factor : kind == "page" ? page_factor : 1;
    const auto share = [&](size_t part, size_t parts) {
      return (lower_quartile(pooled(steps[kind], part, parts)) /
                  lower_quartile(pooled(plain, part, parts)) -
              1) /
             factor;
    };
    std::string thirds;
    for (size_t part = 0; rounds >= 3 && part < 3; ++part) thirds += percent(share(part, 3)) + "  ";
    table.add_row({kind, percent(share(0, 1)), thirds});
    json.add(kind, share(0, 1));
  }
  const double off = seconds_of_a_stage_off() * b.stages_a_step() / step_s;
  const double on = seconds_of_a_stage_on() * b.stages_a_step() / step_s;
  table.add_row({"profiler, its stages alone", percent(on), "computed"});
  table.add_row({"profiler off", percent(off), "computed"});
  json.add("profiler_off", off).add("profiler_stages", on).add("stages_a_step", b.stages_a_step());
  json.add("step_s", step_s).add("rounds", rounds);
  std::printf("%s%s\n", table.text().c_str(), json.text().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"What watching a run costs, as shares of a step."};
  app.add_option("--model", o.model, "Folder of the target")->capture_default_str();
  app.add_option("--rounds", o.rounds, "Segments of each kind")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--minutes", o.minutes, "No round begins after them");
  app.add_option("--steps", o.steps, "Steps of a segment")
      ->capture_default_str()
      ->check(CLI::Range(3, 1000));
  app.add_option("--row-tokens", o.row_tokens, "Tokens of a row")->capture_default_str();
  app.add_option("--anchors", o.anchors, "Blocks of a row")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return run(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}

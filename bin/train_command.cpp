// `dflash train`: trains a drafter by the pipeline of actors.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "actors/pipeline.hpp"
#include "actors/runtime/seeded_faults.hpp"
#include "bin/checkpoint_saver.hpp"
#include "bin/commands.hpp"
#include "bin/net_setup.hpp"
#include "bin/overrides.hpp"
#include "bin/remote_setup.hpp"
#include "bin/replica_restore.hpp"
#include "bin/run_folder.hpp"
#include "bin/run_listener.hpp"
#include "bin/run_page.hpp"
#include "bin/run_summary.hpp"
#include "bin/service_times.hpp"
#include "bin/training_setup.hpp"
#include "bin/version.hpp"
#include "config/error.hpp"
#include "data/files.hpp"
#include "observe/format.hpp"
#include "observe/jsonl.hpp"
#include "observe/log.hpp"

namespace dflash {

namespace {

// First SIGINT or SIGTERM: calls `stop`. Second: the process ends at once; nothing on disk is ever
// half written. A thread waits for them; all others, made later, have them blocked.
class signal_watch {
public:
  signal_watch() {
    sigemptyset(&signals_);
    for (const int number : {SIGINT, SIGTERM, wake}) sigaddset(&signals_, number);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  void start(std::function<void()> stop) {
    thread_ = std::thread([this, stop = std::move(stop)] {
      int number = 0;
      if (sigwait(&signals_, &number) != 0 || number == wake) return;
      stop();
      if (sigwait(&signals_, &number) == 0 && number != wake) ::_exit(1);
    });
  }
  ~signal_watch() {
    if (thread_.joinable()) {
      pthread_kill(thread_.native_handle(), wake);
      thread_.join();
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  signal_watch(const signal_watch&) = delete;
  signal_watch& operator=(const signal_watch&) = delete;

private:
  static constexpr int wake = SIGUSR2;
  sigset_t signals_ = {};
  sigset_t before_ = {};
  std::thread thread_;
};

std::string quoted(const std::string& word) {
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "-_=./:,+") == std::string::npos)
    return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::string command_text(const std::string& file,
                         const std::vector<std::string>& overrides,
                         bool resume) {
  std::string text = "dflash train " + quoted(file);
  for (const std::string& o : overrides) text += " " + quoted(o);
  return text + (resume ? " --resume" : "");
}

void print_best(const run_outcome& outcome, const run_folder& folder) {
  const evaluation* best = best_of(outcome);
  if (best == nullptr) return;
  const std::string link = (folder.checkpoints() / "best").string();
  fmt::print("best: {} (step {}, {})\nexport it with: dflash export {} --out DRAFTER\n",
             link,
             best->step,
             best->tau ? fmt::format("held-out tau {:.4f}", *best->tau)
                       : fmt::format("held-out loss {:.4f}", best->loss.value_or(0)),
             quoted(link));
}

// Nothing was trained: no loss, nothing to go on from.
int report_simulated(const pipeline_result& result) {
  if (result.outcome.status == run_status::failed) {
    fmt::print(stderr,
               "error: the run failed after step {}: {}\n",
               result.outcome.steps,
               result.outcome.reason);
    return 1;
  }
  const double seconds = std::max(1e-9, result.totals.seconds);
  fmt::print("{}: {} steps on simulated lanes, {}, {} in {}; nothing was trained, no checkpoint\n",
             result.outcome.status == run_status::completed ? "done" : "stopped",
             result.outcome.steps,
             rate_text(static_cast<double>(result.totals.batches) / seconds, "batches"),
             rate_text(static_cast<double>(result.totals.tokens) / seconds, "tokens"),
             duration_text(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9))));
  return 0;
}

int report(const training_setup& s,
           const pipeline_result& result,
           const service_meter& meter,
           const run_folder& folder,
           const std::string& resume_command) {
  const run_outcome& outcome = result.outcome;
  try {
    write_file_atomically(folder.summary(), run_summary(s, result, meter).text() + "\n");
  } catch (const std::exception& e) {  // the outcome counts more
    spdlog::error("no summary.json: {}", e.what());
  }
  if (const std::string text = restarts_text(result.mailboxes); !text.empty())
    fmt::print("restarts: {}\n", text);
  if (const auto retired = retired_of(result.mailboxes); !retired.empty())
    fmt::print("retired: {}\n", fmt::join(retired, ", "));
  if (is_simulated(s.config)) return report_simulated(result);
  const std::string checkpoint =
      outcome.saved_step > 0
          ? (folder.checkpoints() / fmt::format("step-{}", outcome.saved_step)).string()
          : std::string();
  if (outcome.saves.failed > 0)
    fmt::print("{} of {} saves failed: see the log\n",
               outcome.saves.failed,
               outcome.saves.failed + outcome.saves.written);
  switch (outcome.status) {
    case run_status::completed:
      if (outcome.stopped_early)
        fmt::print(
            "{}, at step {} of {}\n", outcome.reason, outcome.steps, s.parts.plan->total_steps());
      if (s.parts.store) s.parts.store->remove();
      fmt::print("done: {} steps, loss {:.4f}, accept_len {:.3f}, {} in {}\ncheckpoint: {}\n",
                 outcome.steps,
                 result.totals.loss_smooth,
                 result.totals.accept_len,
                 rate_text(static_cast<double>(result.totals.tokens) /
                               std::max(1e-9, result.totals.seconds),
                           "tokens"),
                 duration_text(
                     std::chrono::nanoseconds(static_cast<int64_t>(result.totals.seconds * 1e9))),
                 checkpoint);
      print_best(outcome, folder);
      return 0;
    case run_status::stopped:
      if (!outcome.reason.empty()) fmt::print("{}\n", outcome.reason);
      fmt::print("stopped after step {} of {}, saved as {}\ngo on with: {}\n",
                 outcome.steps,
                 s.parts.plan->total_steps(),
                 checkpoint,
                 resume_command);
      return 0;
    case run_status::failed:
      break;
  }
  fmt::print(stderr,
             "error: the run failed after step {}: {}\n{}\ngo on with: {}\n",
             outcome.steps,
             outcome.reason,
             checkpoint.empty() ? "no checkpoint was written"
                                : "the last checkpoint stands: " + checkpoint,
             resume_command);
  return 1;
}

// Nothing is left to train and to evaluate: why; empty: something is.
std::string done_already(const training_setup& s) {
  save_options options = s.parts.saves;
  const uint64_t steps = s.parts.first_step, total = s.parts.plan->total_steps();
  options.total_steps = total;
  if (!options.missing.empty()) return {};
  if (steps >= total) return fmt::format("step {} of {}", steps, total);
  const save_book book(std::move(options));
  if (const auto end = book.ends_at(); end && steps >= *end)
    return fmt::format(
        "the run stopped early at step {} of {}, since no evaluation was better than the one at "
        "step {}; a larger eval.patience goes on",
        steps,
        total,
        book.history().best()->step);
  return {};
}

// For a bug report.
std::string details(const run_config& config, const recent_log& log) {
  std::string text = version_text() + "\n\n" + to_toml(config) + "\nlast warnings:\n";
  for (const log_line& line : log.lines()) text += "  " + line.level + " " + line.text + "\n";
  return text + "\n";
}

// DFLASH_FAULTS: actors die on purpose, to see what the run makes of it.
fault_points::function rehearsed_faults() {
  const char* text = std::getenv("DFLASH_FAULTS");
  if (text == nullptr) return {};
  auto faults = parse_seeded_faults(text, "DFLASH_FAULTS");
  spdlog::warn("actors of this run die on purpose: DFLASH_FAULTS={}", text);
  return faults;
}

int train(const std::string& file, const std::vector<std::string>& given, bool resume) {
  std::vector<std::string> overrides = given;
  const std::vector<std::string> caf_options = take_caf_options(overrides);
  run_config config = load_run_config(file, overrides);
  config.run.resume = config.run.resume || resume;
  validate(config);
  const auto log = std::make_shared<const recent_log>();
  set_up_log({.level = config.log.level, .file = {}, .recent = log});
  const network_settings network = network_of(config.net);
  const wire_address listen = parse_wire_address(config.net.listen, "net.listen");
  if (check_exposure(listen, network, "net.listen") && !network.security.tls())
    spdlog::warn("INSECURE: everybody who reaches {} can send this run orders", listen.text());
  check_can_listen({listen.host, listen.port}, "net.listen");
  const auto nodes = nodes_of(config, network);
  check_page(config);
  const fault_points::function faults = rehearsed_faults();
  run_folder folder(config.run.dir, config.run.resume);
  pipeline_system_config system_config(network, caf_options);
  signal_watch signals;  // before any thread is made
  training_setup setup = prepare_training(config, folder.checkpoints(), folder.kept_states());
  fmt::print("run {}\n{}", folder.path().string(), setup.plan_text());
  std::fflush(stdout);  // the plan comes before the progress, into a pipe too
  const std::string resume_command = command_text(file, overrides, true);
  if (const std::string text = done_already(setup); !text.empty()) {
    fmt::print("done already: {}\n", text);
    return 0;
  }

  const auto watch = std::make_shared<run_watch>(watch_options{
      folder.path().string(), setup.parts.first_step, setup.parts.plan->total_steps(), [log] {
        return log->lines();
      }});
  pipeline_result result;
  std::shared_ptr<service_meter> meter;
  {
    caf::actor_system system(system_config);
    run_listener listener(system, listen, network, nodes, folder);
    pipeline_parts parts = setup.parts;
    for (size_t i = 0; i < setup.trainers.size(); ++i)  // none of simulated lanes
      parts.drafters.push_back(setup.trainers[i]
                                   ? work_of(setup.trainers[i],
                                             restorer(setup, folder.checkpoints()),
                                             i == 0 ? checkpoint_saver(setup, folder.checkpoints())
                                                    : checkpoint_writer())
                                   : drafter_work());  // of another host
    if (has_remote_lanes(config)) {
      listener.open_door();
      add_remote_lanes(system, setup, network, nodes, folder.checkpoints(), parts);
    }
    folder.keep();
    write_file_atomically(folder.path() / "config.toml", to_toml(config));
    write_file_atomically(folder.path() / "command", command_text(file, overrides, resume) + "\n");
    write_file_atomically(folder.path() / "versions", version_text() + "\n");
    const cut_report cut = truncate_after(folder.metrics(), setup.parts.first_step);
    if (cut.cut_bytes > 0)
      spdlog::info("metrics.jsonl cut back to step {}", setup.parts.first_step);
    const auto page = serve_page(config, folder, watch);
    std::fflush(stdout);
    parts.metrics_file = folder.metrics();
    parts.noted_evaluation = last_step_of_kind(folder.metrics(), "eval");
    parts.run = folder.path().string();
    parts.watch = watch;
    if (!config.profile.trace.empty())
      parts.trace = trace_options{parse_step_window(config.profile.trace), folder.trace()};
    parts.sinks = make_sinks(config, folder, setup.parts.first_step);
    parts.details = [&config, log] { return details(config, *log); };
    parts.faults = faults;
    meter = service_meter::attach(parts);
    parts.door = listener.door();
    parts.publish = [&listener](const run_inspector_actor& inspector) {
      listener.publish(inspector);
    };
    parts.on_started = [&](std::function<void()> stop) { signals.start(std::move(stop)); };
    result = run_pipeline(system, std::move(parts));
    if (!result.outcome.stuck.empty()) {  // the system would wait for their threads
      const int code = report(setup, result, *meter, folder, resume_command);
      std::error_code ignored;
      std::filesystem::remove(folder.address(), ignored);
      std::filesystem::remove(folder.metrics_address(), ignored);
      std::fflush(nullptr);
      ::_exit(code);
    }
  }
  return report(setup, result, *meter, folder, resume_command);
}

}  // namespace

void add_train_command(CLI::App& app, std::function<int()>& action) {
  struct options {
    std::string file;
    bool resume = false;
  };
  auto given = std::make_shared<options>();
  CLI::App* command =
      app.add_subcommand("train", "Train a drafter; Ctrl-C saves and stops, --resume goes on");
  command->add_option("FILE", given->file, "TOML file with the run's configuration")->required();
  command->add_flag("--resume", given->resume, "Go on from the newest good checkpoint in run.dir");
  accept_overrides(*command);
  command->footer(
      "Any key of the configuration as --section.key=value, e.g. --optim.lr=3e-4. CAF's own "
      "settings\n"
      "as --caf.group.name=value, e.g. --caf.scheduler.max-threads=4.\n"
      "While it trains: `dflash inspect RUN --watch`, and the page whose address is printed.");
  command->callback([given, command, &action] {
    action = [given, command] { return train(given->file, overrides_of(*command), given->resume); };
  });
}

}  // namespace dflash

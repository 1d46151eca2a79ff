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
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "actors/pipeline.hpp"
#include "bin/commands.hpp"
#include "bin/overrides.hpp"
#include "bin/run_folder.hpp"
#include "bin/run_page.hpp"
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

checkpoint_options checkpoint_options_of(const training_setup& s) {
  checkpoint_options o;
  o.config_toml = to_toml(s.config);
  o.export_dtype = s.config.checkpoint.export_dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  const target_config& t = s.model->config();
  if (t.bos >= 0) o.extras.bos = t.bos;
  o.extras.eos = t.eos;
  o.extras.target_hash = s.model->content_hash();
  set_verifier(o.extras, s.config.target.path);
  o.keep = s.config.checkpoint.keep;
  return o;
}

checkpoint_writer saver(const training_setup& s, const run_folder& folder) {
  checkpoint_state base;
  base.total_steps = s.parts.plan->total_steps();
  base.target_hash = s.model->content_hash();
  base.data_hash = s.data_hash();
  base.dtype = name_of(s.dtype);
  base.device = "cpu";
  base.program = program_version() + " " + git_commit();
  base.drafters = s.config.layout.drafters.size();
  base.drafter_threads = static_cast<uint64_t>(s.parts.drafter_threads);
  base.target_threads = static_cast<uint64_t>(s.parts.target_threads);
  return [base, options = checkpoint_options_of(s), checkpoints = folder.checkpoints()](
             const save_request& request, drafter_trainer& trainer) {
    checkpoint_state state = base;
    state.steps = request.steps;
    state.next_k = request.next_k;
    state.dropped = request.dropped;
    state.skipped_steps = request.skipped_steps;
    save_checkpoint(checkpoints, state, trainer, options);
  };
}

std::function<void(const inspector_actor&)> publisher(caf::actor_system& system,
                                                      const network_address& wanted,
                                                      const run_folder& folder) {
  struct published {
    inspector_actor inspector;
    uint16_t port;
  };
  auto last = std::make_shared<published>(published{{}, wanted.port});
  return [&system, wanted, &folder, last](const inspector_actor& inspector) {
    // In its next life at the same port.
    if (last->inspector) system.middleman().unpublish(last->inspector, last->port);
    last->inspector = nullptr;
    const auto port = system.middleman().publish(inspector, last->port, wanted.host.c_str(), true);
    if (!port)
      throw error(
          fmt::format(
              "cannot listen on {}:{}: {}", wanted.host, wanted.port, system.render(port.error())),
          "net.listen",
          "another process has the port? port 0 takes a free one");
    *last = {inspector, *port};
    write_file_atomically(folder.address(), fmt::format("{}:{}\n", wanted.host, *port));
  };
}

struct peaks {
  uint64_t peak_bytes = 0;  // sum of the mailboxes' own peaks
  uint64_t refused = 0;
  int64_t steering_ns = 0;  // service time of the actors that only steer
};

peaks peaks_of(const std::vector<mailbox_report>& mailboxes) {
  peaks p;
  for (const mailbox_report& m : mailboxes) {
    p.peak_bytes += m.peak_bytes;
    p.refused += m.refused;
    if (m.actor == "dispatcher" || m.actor == "coordinator" || m.actor == "metrics")
      p.steering_ns += m.service_ns;
  }
  return p;
}

// "target_forward 0 2, metrics 1"; empty: nobody was restarted.
std::string restarts_text(const std::vector<mailbox_report>& mailboxes) {
  std::string text;
  for (const mailbox_report& m : mailboxes)
    if (m.restarts > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", m.actor, m.restarts);
  return text;
}

std::vector<std::string> retired_of(const std::vector<mailbox_report>& mailboxes) {
  std::vector<std::string> names;
  for (const mailbox_report& m : mailboxes)
    if (m.state == activity_text(activity::retired)) names.push_back(m.actor);
  return names;
}

const char* status_text(run_status status) {
  switch (status) {
    case run_status::completed:
      return "completed";
    case run_status::stopped:
      return "stopped";
    case run_status::failed:
      return "failed";
  }
  return "?";
}

// By kind of actor; parts of a stage stand behind it, with its name before theirs.
json_object stages_json(const actor_profile& profile) {
  json_object all;
  std::vector<json_object> stages;
  std::string kind;
  const auto end_kind = [&] {
    if (!stages.empty()) all.add(kind, std::span<const json_object>(stages));
    stages.clear();
  };
  std::vector<std::string> path;
  for (const auto& row : profile.rows()) {
    if (row.kind != kind) end_kind();
    kind = row.kind;
    path.resize(row.depth);
    path.push_back(row.stats.name);
    json_object stage;
    stage.add("stage", fmt::format("{}", fmt::join(path, ": ")));
    stage.add("count", row.stats.count).add("total_ns", row.stats.total.count());
    stage.add("mean_ns", row.stats.mean.count()).add("p50_ns", row.stats.p50.count());
    stage.add("p99_ns", row.stats.p99.count()).add("share", row.stats.share);
    stages.push_back(std::move(stage));
  }
  end_kind();
  return all;
}

json_object summary(const training_setup& s, const pipeline_result& result) {
  const run_totals& t = result.totals;
  const peaks p = peaks_of(result.mailboxes);
  json_object j;
  j.add("status", status_text(result.outcome.status));
  j.add("steps", result.outcome.steps).add("total_steps", s.parts.plan->total_steps());
  j.add("checkpoint", result.outcome.saved_step);
  if (!result.outcome.reason.empty()) j.add("reason", result.outcome.reason);
  j.add("loss", t.loss).add("loss_smooth", t.loss_smooth).add("accept_len", t.accept_len);
  j.add("skipped_steps", t.skipped_steps).add("dropped_batches", t.dropped);
  j.add("parameters", drafter_parameter_count(s.drafter));
  json_object here;  // of this process; earlier parts of a resumed run are not in it
  here.add("steps", t.steps).add("batches", t.batches).add("tokens", t.tokens);
  here.add("seconds", t.seconds);
  here.add("tokens_per_s", t.seconds > 0 ? static_cast<double>(t.tokens) / t.seconds : 0.0);
  here.add("captured_batches", t.captured).add("kept_batches", t.from_disk);
  here.add("moved_share",
           t.whole_bytes > 0
               ? static_cast<double>(t.moved_bytes) / static_cast<double>(t.whole_bytes)
               : 0.0);
  here.add("limit_bytes", s.parts.limits.total_bytes()).add("peak_bytes", p.peak_bytes);
  here.add("refused_messages", p.refused);
  json_object restarts;
  uint64_t restarts_in_all = 0;
  for (const mailbox_report& m : result.mailboxes) {
    if (m.restarts > 0) restarts.add(m.actor, m.restarts);
    restarts_in_all += m.restarts;
  }
  here.add("restarts", restarts_in_all);
  if (restarts_in_all > 0) here.add("restarts_of", restarts);
  if (const auto retired = retired_of(result.mailboxes); !retired.empty())
    here.add("retired", std::span<const std::string>(retired));
  if (t.batches > 0)
    here.add("actor_layer_us_per_batch",
             static_cast<double>(p.steering_ns) * 1e-3 / static_cast<double>(t.batches));
  json_object actors;
  for (const mailbox_report& m : result.mailboxes) {
    json_object spent;
    for (size_t a = 0; a < m.spent_ns.size(); ++a)
      if (m.spent_ns[a] > 0 && static_cast<activity>(a) != activity::ended)
        spent.add(activity_text(static_cast<activity>(a)),
                  static_cast<double>(m.spent_ns[a]) * 1e-9);
    actors.add(m.actor, spent);
  }
  here.add("actors", actors);
  if (!result.stages.empty()) here.add("stages", stages_json(result.stages));
  j.add("this_process", here);
  return j;
}

int report(const training_setup& s,
           const pipeline_result& result,
           const run_folder& folder,
           const std::string& resume_command) {
  const run_outcome& outcome = result.outcome;
  write_file_atomically(folder.summary(), summary(s, result).text() + "\n");
  if (const std::string text = restarts_text(result.mailboxes); !text.empty())
    fmt::print("restarts: {}\n", text);
  if (const auto retired = retired_of(result.mailboxes); !retired.empty())
    fmt::print("retired: {}\n", fmt::join(retired, ", "));
  const std::string checkpoint =
      outcome.saved_step > 0
          ? (folder.checkpoints() / fmt::format("step-{}", outcome.saved_step)).string()
          : std::string();
  switch (outcome.status) {
    case run_status::completed:
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
      return 0;
    case run_status::stopped:
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

// For a bug report.
std::string details(const run_config& config, const recent_log& log) {
  std::string text = version_text() + "\n\n" + to_toml(config) + "\nlast warnings:\n";
  for (const log_line& line : log.lines()) text += "  " + line.level + " " + line.text + "\n";
  return text + "\n";
}

int train(const std::string& file, const std::vector<std::string>& given, bool resume) {
  std::vector<std::string> overrides = given;
  const std::vector<std::string> caf_options = take_caf_options(overrides);
  run_config config = load_run_config(file, overrides);
  config.run.resume = config.run.resume || resume;
  const auto log = std::make_shared<const recent_log>();
  set_up_log({.level = config.log.level, .file = {}, .recent = log});
  const network_address listen = parse_address(config.net.listen, "net.listen");
  check_can_listen(listen, "net.listen");
  check_page(config);
  run_folder folder(config.run.dir, config.run.resume);
  const pipeline_system_config system_config(true, caf_options);
  signal_watch signals;  // before any thread is made
  training_setup setup = prepare_training(config, folder.checkpoints(), folder.kept_states());
  fmt::print("run {}\n{}", folder.path().string(), setup.plan_text());
  std::fflush(stdout);  // the plan comes before the progress, into a pipe too
  const std::string resume_command = command_text(file, overrides, true);
  if (setup.parts.first_step >= setup.parts.plan->total_steps()) {
    fmt::print(
        "done already: step {} of {}\n", setup.parts.first_step, setup.parts.plan->total_steps());
    return 0;
  }

  write_file_atomically(folder.path() / "config.toml", to_toml(config));
  write_file_atomically(folder.path() / "command", command_text(file, overrides, resume) + "\n");
  write_file_atomically(folder.path() / "versions", version_text() + "\n");
  const cut_report cut = truncate_after(folder.metrics(), setup.parts.first_step);
  if (cut.cut_bytes > 0) spdlog::info("metrics.jsonl cut back to step {}", setup.parts.first_step);

  const auto watch = std::make_shared<run_watch>(watch_options{
      folder.path().string(), setup.parts.first_step, setup.parts.plan->total_steps(), [log] {
        return log->lines();
      }});
  pipeline_result result;
  {
    const auto page = serve_page(config, folder, watch);
    std::fflush(stdout);
    caf::actor_system system(const_cast<pipeline_system_config&>(system_config));
    pipeline_parts parts = setup.parts;
    parts.metrics_file = folder.metrics();
    parts.run = folder.path().string();
    parts.watch = watch;
    if (!config.profile.trace.empty())
      parts.trace = trace_options{parse_step_window(config.profile.trace), folder.trace()};
    parts.sinks = make_sinks(config, folder, setup.parts.first_step);
    parts.details = [&config, log] { return details(config, *log); };
    for (size_t i = 0; i < setup.trainers.size(); ++i)
      parts.drafters.push_back(
          work_of(setup.trainers[i], i == 0 ? saver(setup, folder) : checkpoint_writer()));
    parts.publish = publisher(system, listen, folder);
    parts.on_started = [&](std::function<void()> stop) { signals.start(std::move(stop)); };
    result = run_pipeline(system, std::move(parts));
    if (!result.outcome.stuck.empty()) {  // the system would wait for their threads
      const int code = report(setup, result, folder, resume_command);
      std::error_code ignored;
      std::filesystem::remove(folder.address(), ignored);
      std::filesystem::remove(folder.metrics_address(), ignored);
      std::fflush(nullptr);
      ::_exit(code);
    }
  }
  return report(setup, result, folder, resume_command);
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

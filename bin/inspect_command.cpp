// `dflash inspect`: the mailboxes of a running training, once, again and again, or in full.
#include <unistd.h>

#include <algorithm>
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actors/pipeline.hpp"
#include "actors/run_watch.hpp"
#include "actors/runtime/mailbox_rows.hpp"
#include "bin/commands.hpp"
#include "bin/net_setup.hpp"
#include "config/error.hpp"
#include "data/files.hpp"
#include "messages/actors.hpp"
#include "observe/bottleneck.hpp"
#include "observe/format.hpp"
#include "observe/mailbox_table.hpp"

namespace dflash {

namespace {

constexpr std::chrono::seconds answer_timeout{5};
constexpr uint64_t max_address_bytes = 4096;

// A run folder's own address, or the address itself.
std::string address_of(const std::string& run) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(run)) return run;
  const fs::path file = fs::path(run) / "address";
  if (!fs::exists(file))
    throw error(
        "no training runs in this folder", run, "a run writes its address there while it trains");
  std::string text = read_file(file, max_address_bytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

// A connection to the inspector of a run. Its answers need no other actor of the run.
class connection {
public:
  connection(const wire_address& address, const network_settings& network, std::string text)
      : config_(network), system_(config_), self_(system_), text_(std::move(text)) {
    std::string problem;
    try {
      std::set<std::string> types;
      const auto found = find_published(self_, address, network, types);
      if (system_.assignable(types, system_.message_types(inspector_)))
        inspector_ = caf::actor_cast<inspector_actor>(found);
      else
        problem = "what listens there is no training and no node of this version";
    } catch (const std::runtime_error& e) {
      problem = e.what();
    }
    check(problem);
  }

  system_report report() { return ask<system_report>(inspect_atom_v); }
  std::string dump() { return ask<std::string>(dump_atom_v); }

private:
  template <class Answer, class Question>
  Answer ask(Question question) {
    Answer answer;
    std::string problem;
    // Of normal priority, since CAF 0.17.6 has no other between nodes: its receiver of messages
    // (remote_message_handler) sets the bit of normal priority in every id, so that an urgent
    // request arrives as a normal one, and its answer under an id that nobody waits for.
    self_->request(inspector_, caf::duration{answer_timeout}, question)
        .receive([&](const Answer& a) { answer = a; },
                 [&](const caf::error& e) { problem = "no answer: " + system_.render(e); });
    check(problem);
    return answer;
  }
  void check(const std::string& problem) const {
    if (problem.empty()) return;
    throw error("no training and no node answers: " + problem,
                text_,
                "is it still running? RUN/address is written when a training starts; one with TLS "
                "wants --tls DIR");
  }

  pipeline_system_config config_;
  caf::actor_system system_;
  caf::scoped_actor self_;
  inspector_actor inspector_;
  std::string text_;
};

struct inspect_options {
  std::string run;
  std::string actor;
  std::string sort;
  double every_s = 1.0;
  bool watch = false;
  bool json = false;
  bool dump = false;
  std::string tls;
  bool insecure = false;
};

// Rates over the time between two reports are what is of interest when they are watched.
void use_recent_rates(std::vector<mailbox_row>& rows,
                      const system_report& now,
                      const system_report& before) {
  const double seconds = static_cast<double>(now.uptime_ns - before.uptime_ns) * 1e-9;
  if (seconds <= 0) return;
  for (size_t i = 0; i < rows.size() && i < before.rows.size(); ++i)
    if (before.rows[i].actor == now.rows[i].actor && now.rows[i].handled >= before.rows[i].handled)
      rows[i].messages_per_second =
          static_cast<double>(now.rows[i].handled - before.rows[i].handled) / seconds;
}

std::vector<mailbox_row> chosen(std::vector<mailbox_row> rows, const inspect_options& o) {
  if (!o.actor.empty()) {
    rows = rows_named(rows, o.actor);
    if (rows.empty())
      throw error("no actor of this name", "--actor " + o.actor, "inspect without it lists them");
  }
  if (!o.sort.empty()) sort_rows(rows, o.sort);
  return rows;
}

std::string json_text(const system_report& report, const std::vector<mailbox_row>& rows) {
  json_object all;
  all.add("run", report.run).add("node", report.node);
  all.add("step", report.steps).add("total_steps", report.total_steps);
  all.add("uptime_ns", report.uptime_ns);
  std::vector<json_object> actors;
  for (const mailbox_row& row : rows) actors.push_back(mailbox_json(row));
  all.add("actors", std::span<const json_object>(actors));
  return all.text() + "\n";
}

// Who computes how much of the time: since `before`, or since the start.
std::string slowest_text(const system_report& report, const system_report* before) {
  std::map<std::string, stage_load> loads;
  constexpr auto computing = static_cast<size_t>(activity::computing);
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const mailbox_report& row = report.rows[i];
    const std::string kind = split_name(row.actor).kind;
    const bool passes_batches = kind == "loader" || kind == "target_forward" ||
                                kind == "postprocess" || kind == "drafter_train";
    if (!passes_batches || row.spent_ns.size() <= computing ||
        row.state == activity_text(activity::retired))
      continue;
    int64_t busy = row.spent_ns[computing], passed = row.alive_ns;
    if (before != nullptr && i < before->rows.size() && before->rows[i].actor == row.actor &&
        before->rows[i].spent_ns.size() > computing) {
      busy -= before->rows[i].spent_ns[computing];
      passed = report.uptime_ns - before->uptime_ns;
    }
    stage_load& load = loads[kind];
    load.name = kind;
    ++load.lanes;
    load.busy += static_cast<double>(busy) / static_cast<double>(std::max<int64_t>(1, passed));
  }
  std::vector<stage_load> stages;
  for (auto& [kind, load] : loads) {
    load.busy = std::min(1.0, load.busy / load.lanes);
    stages.push_back(load);
  }
  const auto slowest = find_bottleneck(stages);
  return slowest ? bottleneck_text(*slowest) + "\n" : std::string();
}

std::string plain_text(const system_report& report,
                       const system_report* before,
                       const std::vector<mailbox_row>& rows) {
  return report.run + "  on " + report.node + "  step " + std::to_string(report.steps) + "/" +
         std::to_string(report.total_steps) + "  up " +
         duration_text(std::chrono::nanoseconds(report.uptime_ns)) + "\n" +
         slowest_text(report, before) + mailbox_table(rows);
}

// Where the time of each actor went, by cause.
std::string spent_text(const system_report& report) {
  std::string text = "\ntime spent:\n";
  for (const mailbox_report& m : report.rows) {
    text += "  " + m.actor + ":";
    for (size_t a = 0; a < m.spent_ns.size() && a < static_cast<size_t>(activity::count); ++a)
      if (m.spent_ns[a] > 0)
        text += std::string("  ") + activity_text(static_cast<activity>(a)) + " " +
                duration_text(std::chrono::nanoseconds(m.spent_ns[a]));
    text += "\n";
  }
  return text;
}

int inspect_run(const inspect_options& o) {
  const std::string text = address_of(o.run);
  const wire_address address = parse_wire_address(text, o.run);
  const network_settings network = network_of(o.tls, o.insecure);
  check_exposure(address, network, o.run);
  connection to(address, network, text);
  system_report report = to.report(), before;
  bool again = false;
  std::vector<mailbox_row> rows = rows_of(report.rows);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  while (true) {
    const auto shown = chosen(rows, o);
    std::string page =
        o.json ? json_text(report, shown) : plain_text(report, again ? &before : nullptr, shown);
    if (o.dump && !o.json) page += spent_text(report) + "\n" + to.dump();
    if (o.watch && terminal && !o.json) page = "\x1b[H\x1b[J" + page;  // redrawn in place
    std::fputs(page.c_str(), stdout);
    std::fflush(stdout);
    if (!o.watch) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(o.every_s));
    before = std::move(report);
    again = true;
    try {
      report = to.report();
    } catch (const error&) {  // it was there: the run has ended
      std::fprintf(stderr, "the run has ended, or answers no more\n");
      return 0;
    }
    rows = rows_of(report.rows);
    use_recent_rates(rows, report, before);
  }
}

}  // namespace

void add_inspect_command(CLI::App& app, std::function<int()>& action) {
  auto o = std::make_shared<inspect_options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "What every actor of a running training does, holds and waits for");
  command
      ->add_option(
          "RUN", o->run, "Run folder, the address in its file `address`, or that of a node")
      ->required();
  command->add_option("--tls", o->tls, "Folder of certificates that `dflash cert` made");
  command->add_flag("--insecure", o->insecure, "Ask other machines in plaintext");
  command->add_flag("--watch", o->watch, "Again and again, redrawn in place, until it ends");
  command->add_option("--every", o->every_s, "Seconds between two looks of --watch")
      ->capture_default_str()
      ->check(CLI::Range(0.05, 3600.0));
  command->add_flag("--json", o->json, "One JSON object a look, for scripts");
  command->add_option("--actor", o->actor, "Only this one, or all of a kind: target_forward");
  command->add_option("--sort", o->sort, "Largest first by this figure (actor: by name)")
      ->check(CLI::IsMember(row_keys()));
  command->add_flag("--dump",
                    o->dump,
                    "Everything, for a bug report: times by cause, versions, configuration, last "
                    "warnings, the dispatcher's books");
  command->footer(
      "depth: messages waiting. bytes, limit, peak: tensors waiting, on their way and in service.\n"
      "wait, service: mean time of a message in the mailbox and in its handler. credits: batches\n"
      "that the actor may still send or be sent. batches: those that it has. state: what it does,\n"
      "or what it waits for, and since when. An actor that is stuck is shown as it is: nothing\n"
      "here needs its answer.");
  command->callback([o, &action] { action = [o] { return inspect_run(*o); }; });
}

}  // namespace dflash

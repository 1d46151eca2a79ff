// `dflash inspect`: the mailboxes of a running training, once.
#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/pipeline.hpp"
#include "actors/runtime/mailbox_rows.hpp"
#include "bin/commands.hpp"
#include "bin/run_folder.hpp"
#include "config/error.hpp"
#include "data/files.hpp"
#include "messages/actors.hpp"
#include "observe/format.hpp"
#include "observe/mailbox_table.hpp"

namespace dflash {

namespace {

constexpr std::chrono::seconds connect_timeout{3};
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

system_report ask(const network_address& address, const std::string& text) {
  pipeline_system_config config(true);
  caf::actor_system system(config);
  caf::scoped_actor self{system};
  inspector_actor inspector;
  std::string problem;
  self->request(system.middleman().actor_handle(),
                caf::duration{connect_timeout},
                caf::connect_atom_v,
                address.host,
                address.port)
      .receive(
          [&](const caf::node_id&,
              const caf::strong_actor_ptr& actor,
              const std::set<std::string>& types) {
            if (actor && system.assignable(types, system.message_types(inspector)))
              inspector = caf::actor_cast<inspector_actor>(actor);
            else
              problem = "what listens there is no training of this version";
          },
          [&](const caf::error& e) { problem = system.render(e); });
  system_report report;
  if (inspector)
    self->request(inspector, caf::duration{answer_timeout}, inspect_atom_v)
        .receive([&](const system_report& r) { report = r; },
                 [&](const caf::error& e) { problem = "no answer: " + system.render(e); });
  if (!problem.empty())
    throw error("no training answers: " + problem,
                text,
                "is it still running? RUN/address is written when it starts");
  return report;
}

int inspect_run(const std::string& run) {
  const std::string text = address_of(run);
  const system_report report = ask(parse_address(text, run), text);
  const auto rows = rows_of(report.rows);
  std::printf("%s  step %llu/%llu  up %s\n%s",
              report.run.c_str(),
              static_cast<unsigned long long>(report.steps),
              static_cast<unsigned long long>(report.total_steps),
              duration_text(std::chrono::nanoseconds(report.uptime_ns)).c_str(),
              mailbox_table(rows).c_str());
  return 0;
}

}  // namespace

void add_inspect_command(CLI::App& app, std::function<int()>& action) {
  auto run = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("inspect", "Print the mailboxes of a running training once");
  command->add_option("RUN", *run, "Run folder, or the address in its file `address`")->required();
  command->callback([run, &action] { action = [run] { return inspect_run(*run); }; });
}

}  // namespace dflash

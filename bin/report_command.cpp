// `dflash report`: one or two finished runs as one page.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bin/commands.hpp"
#include "data/files.hpp"
#include "observe/report.hpp"

namespace dflash {

namespace {

struct report_options {
  std::string run, other, out;
  bool text = false;
};

int report(const report_options& o) {
  std::vector<run_report> runs = {read_report(o.run)};
  if (!o.other.empty()) runs.push_back(read_report(o.other));
  if (o.text) {
    std::fputs(report_text(runs).c_str(), stdout);
    return 0;
  }
  const std::string out = o.out.empty() ? o.run + "/report.html" : o.out;
  write_file_atomically(out, report_html(runs));
  fmt::print("{}\n", out);
  return 0;
}

}  // namespace

void add_report_command(CLI::App& app, std::function<int()>& action) {
  auto o = std::make_shared<report_options>();
  CLI::App* command =
      app.add_subcommand("report", "How a run went, on one page; two runs side by side");
  command->add_option("RUN", o->run, "Run folder")->required();
  command->add_option("RUN2", o->other, "Another one, to compare");
  command->add_flag("--text", o->text, "Print text instead of writing HTML");
  command->add_option("--out", o->out, "HTML file to write; without it RUN/report.html");
  command->footer(
      "Configuration, curves, where each actor's time went, who held the others up, restarts,\n"
      "skipped steps, dropped batches, and held-out results: those of training, and what\n"
      "`dflash eval ... --json RUN/eval.json` wrote. One file without outside resources.");
  command->callback([o, &action] { action = [o] { return report(*o); }; });
}

}  // namespace dflash

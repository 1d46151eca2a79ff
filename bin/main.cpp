// The program `dflash`: parses the command line, runs one subcommand, and turns what it throws into
// a message and an exit code: 0 done or stopped in order, 1 the run failed, 2 the input was wrong.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

#include "bin/commands.hpp"
#include "bin/version.hpp"
#include "config/error.hpp"
#include "device/process_settings.hpp"
#include "observe/log.hpp"

namespace {

constexpr int run_failed = 1;
constexpr int input_was_wrong = 2;

constexpr const char* description =
    "dflash trains DFlash drafters: small block-diffusion models that guess a block of tokens for\n"
    "a large frozen target model, so that serving engines decode several tokens per target pass.";

constexpr const char* footer = R"(From a model to a drafter:
  dflash generate --help                          let the target answer prompts: training text
  dflash config config/presets/smollm2.toml       look at a configuration, everything filled in
  dflash plan my.toml --probe                     memory it takes, the best split of the devices
  dflash train my.toml --optim.lr=3e-4            train; Ctrl-C saves and stops, --resume goes on
  dflash capture my.toml --out states             hidden states to disk, to train without the target
  dflash inspect runs/my                          who waits for whom, while it trains
  dflash report runs/my                           how a run went: curves, waits, what held it up
  dflash eval --help                              tokens per target pass on held-out prompts
  dflash doctor MODEL runs/my                     what is wrong with a drafter, and how to mend it
  dflash export --help                            write what serving engines load
  dflash node --help                              lend this host's lanes to a run on another one
  dflash cert --help                              certificates for runs over several hosts

Any key of the configuration can be given as --section.key=value; docs/configuration.md and
`dflash config --reference` list them all.

Exit codes: 0 done, or stopped in order; 1 the run failed; 2 the input was wrong (the message says
what, where and how to mend it).)";

void print_error(const std::string& what, const std::string& where, const std::string& hint) {
  std::fprintf(stderr, "error: %s", what.c_str());
  if (!where.empty()) std::fprintf(stderr, " (%s)", where.c_str());
  std::fprintf(stderr, "\n");
  if (!hint.empty()) std::fprintf(stderr, "hint: %s\n", hint.c_str());
}

void add_commands(CLI::App& app, std::function<int()>& action) {
  dflash::add_train_command(app, action);
  dflash::add_generate_command(app, action);
  dflash::add_capture_command(app, action);
  dflash::add_eval_command(app, action);
  dflash::add_export_command(app, action);
  dflash::add_doctor_command(app, action);
  dflash::add_inspect_command(app, action);
  dflash::add_plan_command(app, action);
  dflash::add_report_command(app, action);
  dflash::add_node_command(app, action);
  dflash::add_cert_command(app, action);
  dflash::add_config_command(app, action);
}

int run(int argc, char** argv) {
  CLI::App app{description, "dflash"};
  app.footer(footer);
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", dflash::version_text());
  std::string level = "info";
  std::function<int()> action;
  add_commands(app, action);
  auto add_level = [&level](CLI::App& to) {
    to.add_option("--log.level", level, "trace, debug, info, warn, error or off")
        ->capture_default_str()
        ->check(CLI::IsMember(dflash::log_levels()));
  };
  add_level(app);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
    if (command->get_option_no_throw("--log.level") == nullptr) add_level(*command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& problem) {
    const auto chosen = app.get_subcommands();
    const std::string command = chosen.empty() ? "" : " " + chosen.front()->get_name();
    print_error(problem.what(), "", "dflash" + command + " --help shows what it takes");
    return input_was_wrong;
  }
  if (!action) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  }
  dflash::set_up_log({.level = level});
  const int code = action();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw std::runtime_error("cannot write to the standard output");
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  dflash::restart_with_settings(argv);
  try {
    return run(argc, argv);
  } catch (const dflash::error& problem) {
    print_error(problem.what_, problem.where, problem.hint);
    return input_was_wrong;
  } catch (const std::exception& problem) {
    print_error(problem.what(), "", "");
  } catch (...) {
    print_error("an exception of unknown type", "", "");
  }
  return run_failed;
}

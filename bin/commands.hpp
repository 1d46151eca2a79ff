// The subcommands of `dflash`: each stands in bin/<name>_command.cpp. add_<name>_command() adds its
// subcommand to the app and, when it is the one that was called, sets `action` to what main runs
// after parsing; the action returns the exit code (0 done, 1 the run failed) or throws: error for
// what the user can mend (exit 2), anything else for a failed run (exit 1).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace dflash {

void add_train_command(CLI::App& app, std::function<int()>& action);
void add_capture_command(CLI::App& app, std::function<int()>& action);
void add_doctor_command(CLI::App& app, std::function<int()>& action);
void add_generate_command(CLI::App& app, std::function<int()>& action);
void add_eval_command(CLI::App& app, std::function<int()>& action);
void add_export_command(CLI::App& app, std::function<int()>& action);
void add_inspect_command(CLI::App& app, std::function<int()>& action);
void add_plan_command(CLI::App& app, std::function<int()>& action);
void add_node_command(CLI::App& app, std::function<int()>& action);
void add_report_command(CLI::App& app, std::function<int()>& action);
void add_cert_command(CLI::App& app, std::function<int()>& action);
void add_config_command(CLI::App& app, std::function<int()>& action);

}  // namespace dflash

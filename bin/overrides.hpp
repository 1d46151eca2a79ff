// The "--section.key=value" arguments of subcommands that read a run configuration.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace dflash {

/// Lets a subcommand take "--section.key=value". Call while adding it.
void accept_overrides(CLI::App& command);

/// The overrides given to that subcommand, in order, as load_run_config() takes them; a
/// "--log.level" that main read is among them. Call inside the action. Throws error for arguments
/// of another form.
std::vector<std::string> overrides_of(const CLI::App& command);

/// Takes "--caf.group.name=value" out of overrides, for pipeline_system_config: "group.name=value".
std::vector<std::string> take_caf_options(std::vector<std::string>& overrides);

}  // namespace dflash

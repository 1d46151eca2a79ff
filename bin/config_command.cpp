// `dflash config`: the resolved configuration, or the reference page. Does no work.
#include <cstdio>
#include <memory>

#include "bin/commands.hpp"
#include "bin/overrides.hpp"
#include "config/run_config.hpp"

namespace dflash {

void add_config_command(CLI::App& app, std::function<int()>& action) {
  struct options {
    std::string file;
    bool reference = false;
  };
  auto given = std::make_shared<options>();
  CLI::App* command =
      app.add_subcommand("config", "Print a configuration, checked and with every key filled in");
  command->add_option("FILE", given->file, "TOML file; without one, the defaults are printed");
  command->add_flag(
      "--reference", given->reference, "Print the page of all keys (docs/configuration.md)");
  accept_overrides(*command);
  command->callback([given, command, &action] {
    action = [given, command] {
      const auto overrides = overrides_of(*command);
      if (given->reference) {
        std::fputs(reference_markdown().c_str(), stdout);
        return 0;
      }
      // Without a file there is nothing that could be complete: show what the defaults are.
      const run_config config = given->file.empty() ? parse_run_config({}, overrides)
                                                    : load_run_config(given->file, overrides);
      std::fputs(to_toml(config).c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace dflash

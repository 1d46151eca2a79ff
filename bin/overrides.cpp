#include "bin/overrides.hpp"

#include <string_view>

#include "config/error.hpp"

namespace dflash {

std::vector<std::string> take_caf_options(std::vector<std::string>& overrides) {
  constexpr std::string_view prefix = "--caf.";
  std::vector<std::string> options;
  std::erase_if(overrides, [&](const std::string& text) {
    if (!text.starts_with(prefix)) return false;
    options.push_back(text.substr(prefix.size()));
    return true;
  });
  return options;
}

void accept_overrides(CLI::App& command) {
  command.allow_extras();
  command.footer("Any key of the configuration as --section.key=value, e.g. --optim.lr=3e-4");
}

std::vector<std::string> overrides_of(const CLI::App& command) {
  std::vector<std::string> overrides;
  for (const std::string& text : command.remaining()) {
    const auto equals = text.find('=');
    const auto dot = text.find('.');
    if (!text.starts_with("--") || dot == std::string::npos || dot > equals)
      throw error("unknown argument \"" + text + "\"",
                  "",
                  "dflash " + command.get_name() +
                      " --help lists the options; keys of the configuration are given as "
                      "--section.key=value");
    if (equals == std::string::npos)
      throw error("\"" + text + "\" has no value", "", "write " + text + "=VALUE, without a space");
    overrides.push_back(text);
  }
  for (const CLI::App* app : {command.get_parent(), &command}) {  // before or after its name
    const CLI::Option* level = app == nullptr ? nullptr : app->get_option_no_throw("--log.level");
    if (level != nullptr && level->count() > 0)
      overrides.push_back("--log.level=" + level->as<std::string>());
  }
  return overrides;
}

}  // namespace dflash

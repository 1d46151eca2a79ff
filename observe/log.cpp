#include "observe/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "config/error.hpp"

namespace dflash {

const std::vector<std::string>& log_levels() {
  static const std::vector<std::string> levels = {"trace", "debug", "info", "warn", "error", "off"};
  return levels;
}

void set_up_log(const log_options& options) {
  const auto& levels = log_levels();
  if (std::find(levels.begin(), levels.end(), options.level) == levels.end())
    throw error("unknown log level \"" + options.level + "\"",
                "log.level",
                "one of trace, debug, info, warn, error, off");
  const std::string pattern = "%H:%M:%S %^%l%$ %v";
  auto console = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  // On a terminal a message takes the place of the progress line, which is drawn again below it.
  console->set_pattern(::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" + pattern : pattern);
  std::vector<spdlog::sink_ptr> sinks = {std::move(console)};
  if (!options.file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file.string()));
      sinks.back()->set_pattern("%Y-%m-%d " + pattern);
    } catch (const spdlog::spdlog_ex& problem) {
      throw error(std::string("cannot open the log file: ") + problem.what(),
                  options.file.string(),
                  "its folder must exist and be writable");
    }
  }
  auto logger = std::make_shared<spdlog::logger>("dflash", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace dflash

#include "observe/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "config/error.hpp"

namespace dflash {

namespace {

constexpr std::size_t lines_kept = 50;
constexpr std::size_t longest_line = 4000;

}  // namespace

const std::vector<std::string>& log_levels() {
  static const std::vector<std::string> levels = {"trace", "debug", "info", "warn", "error", "off"};
  return levels;
}

struct recent_log::implementation {
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(lines_kept);
};

recent_log::recent_log() : impl_(std::make_shared<implementation>()) {
  impl_->sink->set_level(spdlog::level::warn);
}

recent_log::~recent_log() = default;

std::vector<log_line> recent_log::lines() const {
  std::vector<log_line> lines;
  for (const auto& message : impl_->sink->last_raw()) {
    const auto level = spdlog::level::to_string_view(message.level);
    lines.push_back({std::chrono::duration<double>(message.time.time_since_epoch()).count(),
                     {level.data(), level.size()},
                     {message.payload.data(), std::min(message.payload.size(), longest_line)}});
  }
  return lines;
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
  if (options.recent) sinks.push_back(options.recent->impl_->sink);
  auto logger = std::make_shared<spdlog::logger>("dflash", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace dflash

#include "observe/log.hpp"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string_view>

#include "config/error.hpp"
#include "observe/progress.hpp"

namespace dflash {

namespace {

constexpr std::size_t lines_kept = 50;
constexpr std::size_t longest_line = 4000;
constexpr const char* line_pattern = "%H:%M:%S %^%l%$ %v";
constexpr std::array<std::string_view, spdlog::level::n_levels> colours = {"\x1b[37m",
                                                                           "\x1b[36m",
                                                                           "\x1b[32m",
                                                                           "\x1b[33m\x1b[1m",
                                                                           "\x1b[31m\x1b[1m",
                                                                           "\x1b[1m\x1b[41m",
                                                                           ""};

class console_sink final : public spdlog::sinks::base_sink<std::mutex> {
public:
  console_sink(std::FILE* stream, bool terminal) : stream_(stream), terminal_(terminal) {}

protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::string text(line.data(), line.size());
    if (terminal_) {
      if (message.color_range_end > message.color_range_start) {
        text.insert(message.color_range_end, "\x1b[m");
        text.insert(message.color_range_start, colours.at(static_cast<std::size_t>(message.level)));
      }
      text.insert(0, "\r\x1b[K");
    }
    std::fwrite(text.data(), 1, text.size(), stream_);
  }
  void flush_() override { std::fflush(stream_); }

private:
  std::FILE* stream_;
  bool terminal_;
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> console_log(std::FILE* stream, bool terminal) {
  auto sink = std::make_shared<console_sink>(stream, terminal);
  sink->set_pattern(line_pattern);
  return sink;
}

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
  std::vector<spdlog::sink_ptr> sinks = {console_log(stderr, is_terminal(stderr))};
  if (!options.file.empty()) {
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file.string()));
      sinks.back()->set_pattern(std::string("%Y-%m-%d ") + line_pattern);
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

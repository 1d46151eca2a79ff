// Set-up of the program's log (spdlog's default logger): one line per event for people, on stderr,
// so that stdout stays what a command prints. Log with spdlog::info(...) and the like.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "observe/run_view.hpp"

namespace spdlog::sinks {
class sink;
}

namespace dflash {

/// Keeps the last warnings and errors, for who looks at a run. Thread safe.
class recent_log {
public:
  recent_log();
  ~recent_log();
  std::vector<log_line> lines() const;  // oldest first

private:
  friend void set_up_log(const struct log_options&);
  struct implementation;
  std::shared_ptr<implementation> impl_;
};

struct log_options {
  std::string level = "info";
  std::filesystem::path file = {};  // appended to as well; empty: none
  std::shared_ptr<const recent_log> recent = {};
};

/// Where messages for people go. On a terminal a message takes the place of the progress line,
/// which is drawn again below it, and is written in one piece: another thread may be redrawing that
/// line. The stream is not owned, and not buffered (as stderr).
std::shared_ptr<spdlog::sinks::sink> console_log(std::FILE* stream, bool terminal);

/// "trace", "debug", "info", "warn", "error", "off".
const std::vector<std::string>& log_levels();

/// Replaces the default logger; may be called again (a run's folder is known later than its level).
/// Throws error for an unknown level or a file that cannot be opened. Call from the main thread,
/// while no other thread logs.
void set_up_log(const log_options& options);

}  // namespace dflash

#include "observe/log.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "config/error.hpp"

namespace dflash {

TEST_CASE("messages go to the file from their level on") {
  const auto path = std::filesystem::temp_directory_path() /
                    ("dflash_log_" + std::to_string(::getpid()) + ".txt");
  set_up_log({.level = "error", .file = path});
  spdlog::info("quiet");
  spdlog::error("a deliberate message of the test of the log");
  spdlog::default_logger()->flush();
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  CHECK(text.str().find("quiet") == std::string::npos);
  CHECK(text.str().find("a deliberate message") != std::string::npos);
  set_up_log({});
  std::filesystem::remove(path);
}

TEST_CASE("unknown levels and files that cannot be opened are refused") {
  CHECK_THROWS_AS(set_up_log({.level = "loud", .file = {}}), error);
  CHECK_THROWS_AS(set_up_log({.level = "info", .file = "/proc/no/such/file"}), error);
}

}  // namespace dflash

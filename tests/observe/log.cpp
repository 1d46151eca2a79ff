#include "observe/log.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "config/error.hpp"
#include "observe/progress.hpp"

namespace dflash {

namespace {

// The lines that a terminal shows: carriage return, line feed, erase to the end; colours are left
// out.
std::vector<std::string> screen_of(const std::string& bytes) {
  std::vector<std::string> lines(1);
  std::size_t column = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string& line = lines.back();
    if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (bytes[i] == '\x1b') {
      while (std::isalpha(static_cast<unsigned char>(bytes.at(++i))) == 0) {
      }
      if (bytes[i] == 'K') line.resize(std::min(line.size(), column));
    } else {
      line.resize(std::max(line.size(), column + 1), ' ');
      line[column++] = bytes[i];
    }
  }
  return lines;
}

}  // namespace

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

TEST_CASE("on a terminal messages and the progress line of another thread stay whole") {
  constexpr int messages = 3000;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::tmpfile(), &std::fclose);
  std::setvbuf(stream.get(), nullptr, _IONBF, 0);  // as stderr
  spdlog::logger log("test", console_log(stream.get(), true));
  std::thread redraws([&] {
    progress_line line(
        {.stream = stream.get(), .terminal = true, .redraw_every = std::chrono::nanoseconds(0)});
    for (int i = 0; i < messages; ++i) line.show("step 12/3000  loss 3.214  accept_len 1.52");
  });
  for (int i = 0; i < messages; ++i) log.warn("message {}", i);
  redraws.join();
  std::string bytes(static_cast<std::size_t>(std::ftell(stream.get())), ' ');
  std::rewind(stream.get());
  REQUIRE(std::fread(bytes.data(), 1, bytes.size(), stream.get()) == bytes.size());
  CHECK(bytes.find("\x1b[33m") != std::string::npos);
  int next = 0, ends = 0;
  for (const std::string& line : screen_of(bytes)) {
    if (line.starts_with("step ")) {
      CHECK(line == "step 12/3000  loss 3.214  accept_len 1.52");
      ++ends;
    } else if (!line.empty()) {  // HH:MM:SS
      REQUIRE(line.size() > 9);
      REQUIRE(line.substr(9) == "warning message " + std::to_string(next));
      ++next;
    }
  }
  CHECK(next == messages);
  CHECK(ends == 1);
}

TEST_CASE("a progress line ends in the write that shows it, so that no message comes between") {
  std::vector<std::string> writes;
  const cookie_io_functions_t into{nullptr,
                                   [](void* list, const char* bytes, size_t size) -> ssize_t {
                                     static_cast<std::vector<std::string>*>(list)->emplace_back(
                                         bytes, size);
                                     return static_cast<ssize_t>(size);
                                   },
                                   nullptr,
                                   nullptr};
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(::fopencookie(&writes, "w", into),
                                                               &std::fclose);
  std::setvbuf(stream.get(), nullptr, _IONBF, 0);  // as stderr
  {
    progress_line line({.stream = stream.get(), .terminal = true});
    line.show("step 1");
  }
  CHECK(writes == std::vector<std::string>{"\rstep 1\x1b[K", "\rstep 1\x1b[K\n"});
}

TEST_CASE("into a file a message is plain text") {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::tmpfile(), &std::fclose);
  std::setvbuf(stream.get(), nullptr, _IONBF, 0);
  spdlog::logger("test", console_log(stream.get(), false)).error("broken");
  std::string bytes(static_cast<std::size_t>(std::ftell(stream.get())), ' ');
  std::rewind(stream.get());
  REQUIRE(std::fread(bytes.data(), 1, bytes.size(), stream.get()) == bytes.size());
  CHECK(bytes.substr(8) == " error broken\n");
}

TEST_CASE("unknown levels and files that cannot be opened are refused") {
  CHECK_THROWS_AS(set_up_log({.level = "loud", .file = {}}), error);
  CHECK_THROWS_AS(set_up_log({.level = "info", .file = "/proc/no/such/file"}), error);
}

}  // namespace dflash

#include "observe/jsonl.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace {

std::string reason() {
  return std::system_category().message(errno);
}

// Bytes up to and including the last line end.
off_t end_of_last_line(int file, off_t size) {
  char block[4096];
  while (size > 0) {
    const off_t first = size > off_t{sizeof block} ? size - off_t{sizeof block} : 0;
    const ssize_t got = ::pread(file, block, static_cast<std::size_t>(size - first), first);
    if (got <= 0) return size;
    for (ssize_t i = got; i > 0; --i)
      if (block[i - 1] == '\n') return first + i;
    size = first;
  }
  return 0;
}

// The line's step, if it has one; nothing at all for a line that is not an object.
struct line_step {
  std::optional<std::uint64_t> step;
};

std::optional<line_step> read_step(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end()) return line_step{};
  if (!step->is_number_unsigned()) return std::nullopt;
  return line_step{step->get<std::uint64_t>()};
}

}  // namespace

jsonl_writer::jsonl_writer(std::filesystem::path path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0)
    throw error("cannot open for writing: " + reason(),
                path_.string(),
                "its folder must exist and be writable");
  const off_t size = ::lseek(file_, 0, SEEK_END);
  const off_t whole = end_of_last_line(file_, size);
  if (whole < size && ::ftruncate(file_, whole) != 0) {
    const std::string why = reason();
    ::close(std::exchange(file_, -1));
    throw error("cannot cut the incomplete last line: " + why, path_.string());
  }
}

jsonl_writer::~jsonl_writer() {
  if (file_ >= 0) ::close(file_);
}

jsonl_writer::jsonl_writer(jsonl_writer&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

void jsonl_writer::write(const json_object& line) {
  DFLASH_CHECK(file_ >= 0, "the writer was moved from");
  const std::string text = line.text() + "\n";
  const off_t before = ::lseek(file_, 0, SEEK_END);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = ::write(file_, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int problem = put < 0 ? errno : EIO;
      // If cutting fails as well, the next opening removes the partial line.
      if (done > 0) std::ignore = ::ftruncate(file_, before);
      throw std::system_error(problem, std::system_category(), "cannot write " + path_.string());
    }
    done += static_cast<std::size_t>(put);
  }
}

bool jsonl_writer::is_removed() const {
  struct stat status = {};
  return file_ < 0 || ::fstat(file_, &status) != 0 || status.st_nlink == 0;
}

cut_report truncate_after(const std::filesystem::path& path, std::uint64_t step) {
  cut_report report;
  std::error_code problem;
  const std::uintmax_t size = std::filesystem::file_size(path, problem);
  if (problem == std::errc::no_such_file_or_directory) return report;
  if (problem) throw error("cannot be read: " + problem.message(), path.string());
  std::ifstream in(path, std::ios::binary);
  if (!in) throw error("cannot be read", path.string());
  std::uintmax_t kept = 0;
  std::string line;
  while (std::getline(in, line) && !in.eof()) {  // at eof the line has no end: it is incomplete
    const auto found = read_step(line);
    if (!found || (found->step && *found->step > step)) break;
    kept += line.size() + 1;
    ++report.kept_lines;
  }
  report.cut_bytes = size - kept;
  if (report.cut_bytes == 0) return report;
  std::filesystem::resize_file(path, kept, problem);
  if (problem) throw error("cannot be cut back: " + problem.message(), path.string());
  return report;
}

std::uint64_t last_step_of_kind(const std::filesystem::path& path, std::string_view kind) {
  std::ifstream in(path, std::ios::binary);
  std::uint64_t step = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.find(kind) == std::string::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || json.value("kind", "") != kind) continue;
    if (const auto found = read_step(line); found && found->step) step = *found->step;
  }
  return step;
}

}  // namespace dflash

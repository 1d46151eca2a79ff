#include "data/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace {

[[noreturn]] void fail(const std::string& what,
                       const std::filesystem::path& path,
                       int code,
                       std::string hint = {}) {
  if (hint.empty() && (code == EACCES || code == EPERM || code == EROFS))
    hint = "check the permissions, or choose another folder";
  if (hint.empty() && (code == ENOSPC || code == EDQUOT)) hint = "free some space on this disk";
  if (hint.empty() && (code == ENOENT || code == ENOTDIR))
    hint = "check the path; the folder must exist";
  throw error(what + ": " + std::generic_category().message(code), path.string(), std::move(hint));
}

}  // namespace

file_descriptor::file_descriptor(file_descriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

file_descriptor& file_descriptor::operator=(file_descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

file_descriptor::~file_descriptor() {
  close();
}

void file_descriptor::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

file_descriptor open_regular_file(const std::filesystem::path& path, uint64_t& size) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  file_descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail("cannot open the file", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail("cannot read the file", path, errno);
  if (!S_ISREG(status.st_mode)) throw error("not a regular file", path.string());
  size = static_cast<uint64_t>(status.st_size);
  return file;
}

atomic_file::atomic_file(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += ".tmp";
  file_ = file_descriptor(
      ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file_) fail("cannot write the file", path_, errno);
}

atomic_file::~atomic_file() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void atomic_file::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write the file", path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void atomic_file::commit() {
  DFLASH_CHECK(!committed_, "a file is committed once", path_.string());
  if (::fsync(file_.get()) != 0) fail("cannot write the file", path_, errno);
  file_.close();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot write the file", path_, errno);
  committed_ = true;
  fsync_directory(path_.parent_path());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  atomic_file file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  uint64_t size = 0;
  const file_descriptor file = open_regular_file(path, size);
  if (size > max_bytes) {
    throw error("the file has " + std::to_string(size) + " bytes, more than the " +
                    std::to_string(max_bytes) + " that make sense here",
                path.string());
  }
  std::string content(size, '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::read(file.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read the file", path, errno);
    if (n == 0) break;  // became shorter meanwhile
    done += static_cast<size_t>(n);
  }
  content.resize(done);
  return content;
}

void fsync_directory(const std::filesystem::path& folder) {
  const std::filesystem::path name = folder.empty() ? std::filesystem::path(".") : folder;
  const file_descriptor file(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) fail("cannot open the folder", name, errno);
  // Some file systems cannot sync a folder and say EINVAL; there is nothing better to do on them.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail("cannot sync the folder", name, errno);
}

}  // namespace dflash

#include "bin/run_folder.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

constexpr const char* lock_name = "lock";

bool holds_a_run(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != lock_name) return true;
  return false;
}

// Folders on the way to `path` that are not there, the outermost first.
std::vector<fs::path> missing_folders(const fs::path& path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path at = fs::absolute(path).lexically_normal(); !fs::exists(at, ignored);
       at = at.parent_path())
    missing.insert(missing.begin(), at);
  return missing;
}

// Not the one of a command that was refused meanwhile, which took its file away.
bool is_file_at(const file_descriptor& file, const fs::path& path) {
  struct stat open = {}, there = {};
  return ::fstat(file.get(), &open) == 0 && ::stat(path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

}  // namespace

provisional_paths::~provisional_paths() {
  std::error_code ignored;
  for (auto path = paths_.rbegin(); path != paths_.rend(); ++path) fs::remove(*path, ignored);
}

run_folder::run_folder(fs::path path, bool resume) : path_(std::move(path)) {
  std::error_code failure;
  for (fs::path& folder : missing_folders(path_)) made_.add(std::move(folder));
  fs::create_directories(path_, failure);
  if (failure || !fs::is_directory(path_))
    throw error("the run folder cannot be made: " +
                    (failure ? failure.message() : std::string("a file has its name")),
                "run.dir = " + path_.string(),
                "choose a folder that can be written");
  const fs::path lock = path_ / lock_name;
  for (const fs::path& file : {lock, kept_states()})
    if (!fs::exists(file, failure)) made_.add(file);
  lock_ = file_descriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_)
    throw error("the run folder cannot be written: " + std::string(std::strerror(errno)),
                "run.dir = " + path_.string(),
                "choose a folder that can be written");
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 || !is_file_at(lock_, lock)) {
    made_.keep();  // they are the other one's
    throw error("another process trains in this folder",
                "run.dir = " + path_.string(),
                "wait for it, or choose another folder");
  }
  if (!resume && holds_a_run(path_))
    throw error("the run folder is not empty",
                "run.dir = " + path_.string(),
                "--resume goes on with that run; otherwise choose another folder");
}

run_folder::~run_folder() {
  std::error_code ignored;
  fs::remove(address(), ignored);
  fs::remove(metrics_address(), ignored);
}

network_address parse_address(const std::string& text, const std::string& where) {
  network_address address;
  const auto colon = text.rfind(':');
  if (colon != std::string::npos && colon > 0) {
    address.host = text.substr(0, colon);
    const char* end = text.data() + text.size();
    const auto [stopped, status] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (status == std::errc() && stopped == end) return address;
  }
  throw error("\"" + text + "\" is no address", where, "HOST:PORT, e.g. 127.0.0.1:0");
}

void check_can_listen(const network_address& address, const std::string& where) {
  const std::string text = address.host + ":" + std::to_string(address.port);
  const auto refuse = [&](const std::string& why) {
    throw error("cannot listen on " + text + ": " + why,
                where,
                "another process has the port? port 0 takes a free one");
  };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int status = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &list))
    refuse(::gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  const file_descriptor probe(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(probe.get(), list->ai_addr, list->ai_addrlen) != 0) refuse(std::strerror(errno));
}

}  // namespace dflash

#include "fuzz_target.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace dflash {

memory_file::memory_file(const uint8_t* data, size_t size) : fd_(::memfd_create("fuzz", 0)) {
  DFLASH_CHECK(fd_ >= 0, "a file in memory");
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::write(fd_, data + done, size - done);
    DFLASH_CHECK(n > 0, "written");
    done += static_cast<size_t>(n);
  }
  path_ = "/proc/self/fd/" + std::to_string(fd_);
}

memory_file::~memory_file() {
  ::close(fd_);
}

std::filesystem::path fuzz_folder() {
  struct folder {
    folder() { std::filesystem::create_directories(path); }
    ~folder() { std::filesystem::remove_all(path); }
    std::filesystem::path path =
        std::filesystem::path("/dev/shm") / ("dflash-fuzz-" + std::to_string(::getpid()));
  };
  static const folder made;
  return made.path;
}

void write_fuzz_file(const std::filesystem::path& path, const uint8_t* data, size_t size) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  DFLASH_CHECK(out.good(), "written", path);
}

void touch(std::span<const std::byte> bytes) {
  [[maybe_unused]] static volatile std::byte sink;
  std::byte all{};
  for (const std::byte b : bytes) all ^= b;
  sink = all;
}

void check_refusal(const std::exception& refusal) {
  DFLASH_CHECK(std::string_view(refusal.what()).size() > 10, "a refusal that says something");
}

}  // namespace dflash

// What all fuzz targets share. A target is one translation unit with LLVMFuzzerTestOneInput: bytes
// from a stranger go in, a dflash::error or a value comes out; anything else (another exception, a
// signal, a sanitizer's report, memory above the limit) is a fault of the decoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace dflash {

/// A file in memory that holds the bytes, under a path that the readers can open.
class memory_file {
public:
  memory_file(const uint8_t* data, size_t size);
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file();
  const std::filesystem::path& path() const { return path_; }

private:
  int fd_;
  std::filesystem::path path_;
};

/// A folder in memory for readers that look a file up by its name; the same one for each input.
std::filesystem::path fuzz_folder();
void write_fuzz_file(const std::filesystem::path& path, const uint8_t* data, size_t size);

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Reads every byte, so that a span that reaches too far is seen.
void touch(std::span<const std::byte> bytes);

/// Runs a decoder; a refusal is a good answer, and must say something.
template <class F>
void decode(F&& decoder);

void check_refusal(const std::exception& refusal);

}  // namespace dflash

#include "config/error.hpp"

namespace dflash {

template <class F>
void decode(F&& decoder) {
  try {
    decoder();
  } catch (const error& e) {
    check_refusal(e);
  }
}

}  // namespace dflash

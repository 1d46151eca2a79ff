// Whole files: read, write atomically, make durable, hash. Every failure is an error that names the
// file and what the system said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dflash {

/// Owns one file descriptor.
class file_descriptor {
public:
  file_descriptor() = default;
  explicit file_descriptor(int fd) : fd_(fd) {}
  file_descriptor(file_descriptor&& other) noexcept;
  file_descriptor& operator=(file_descriptor&& other) noexcept;
  ~file_descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

private:
  int fd_ = -1;
};

/// Opens for reading and tells the size. Throws error if it is missing or no regular file.
file_descriptor open_regular_file(const std::filesystem::path& path, uint64_t& size);

/// A file that appears under its name only when it is complete: written as PATH.tmp, then commit()
/// fsyncs, renames and fsyncs the folder. Without commit() the temporary file is removed.
class atomic_file {
public:
  /// Throws error if the folder cannot be written.
  explicit atomic_file(std::filesystem::path path);
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;
  ~atomic_file();
  void write(std::span<const std::byte> bytes);
  void commit();

private:
  std::filesystem::path path_, temporary_;
  file_descriptor file_;
  bool committed_ = false;
};

/// Old content or new content, never a part of either.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// The whole file; throws error if it is missing, no regular file, or larger than max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

/// Makes renames, new names and removals in the folder survive a power cut.
void fsync_directory(const std::filesystem::path& folder);

/// SHA-256 as 64 lower-case hex digits.
std::string sha256(std::span<const std::byte> bytes);
std::string sha256(std::string_view text);
std::string sha256_file(const std::filesystem::path& path);

/// CRC-32C (Castagnoli) of the bytes; pass an earlier result to go on from it.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far = 0);

}  // namespace dflash

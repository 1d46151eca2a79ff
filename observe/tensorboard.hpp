// TensorBoard event files, written without TensorFlow: TFRecord framing around Event messages in
// protobuf's wire form (tensorflow/core/util/event.proto, framework/summary.proto).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "observe/metrics_line.hpp"

namespace dflash {

/// CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes);

/// One record of a TFRecord file.
std::string tf_record(std::string_view payload);

/// Owns one new file in a folder, which is made; one thread at a time. Everything throws
/// std::system_error where the disk refuses.
class tensorboard_writer {
public:
  /// first_step > 0: a resumed run; TensorBoard forgets what older files have from there on.
  tensorboard_writer(const std::filesystem::path& folder,
                     double unix_time,
                     std::uint64_t first_step = 0);

  /// One Event with a simple_value for each scalar; readers see it at once. Names without a group
  /// go to "train/".
  void write(std::uint64_t step, double unix_time, std::span<const scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

private:
  struct closer {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void append(const std::string& event);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, closer> file_;
};

}  // namespace dflash

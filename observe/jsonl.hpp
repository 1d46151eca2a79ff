// Files of one JSON object a line: written append-only, each line by one write, so that a reader
// sees whole lines and a crash leaves at most one cut one, which the next writer removes.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dflash {

/// Builds one object; keys in the order in which they are added. Non-finite numbers become null,
/// and bytes that are not UTF-8 become U+FFFD. A key must not be added twice.
class json_object {
public:
  template <std::integral T>
  json_object& add(std::string_view key, T value) {
    if constexpr (std::same_as<T, bool>)
      return add_raw(key, value ? "true" : "false");
    else
      return add_raw(key, std::to_string(value));
  }
  json_object& add(std::string_view key, double value);
  json_object& add(std::string_view key, std::string_view value);
  json_object& add(std::string_view key, const char* value) {
    return add(key, std::string_view(value));
  }
  json_object& add(std::string_view key, const json_object& value);
  json_object& add(std::string_view key, std::span<const double> values);
  json_object& add(std::string_view key, std::span<const std::int64_t> values);
  json_object& add(std::string_view key, std::span<const std::string> values);
  json_object& add(std::string_view key, std::span<const json_object> values);
  json_object& add_null(std::string_view key) { return add_raw(key, "null"); }

  std::string text() const { return "{" + members_ + "}"; }

private:
  json_object& add_raw(std::string_view key, std::string_view json);

  std::string members_;
};

/// A string as JSON, quotes included.
std::string json_string(std::string_view text);

/// Owns the file for as long as it lives. One thread at a time.
class jsonl_writer {
public:
  /// Opens for appending, makes the file if it is missing, cuts a last line without its end.
  /// Throws error if the file cannot be opened.
  explicit jsonl_writer(std::filesystem::path path);
  ~jsonl_writer();
  jsonl_writer(jsonl_writer&& other) noexcept;
  jsonl_writer& operator=(jsonl_writer&&) = delete;

  /// Appends one line; whoever reads the file sees it at once. Throws std::system_error if the disk
  /// is full or fails; nothing of the line is left in the file then, and a later write may work.
  void write(const json_object& line);
  /// Somebody removed the file: lines go nowhere.
  bool is_removed() const;

  const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
  int file_ = -1;
};

struct cut_report {
  std::uint64_t kept_lines = 0;
  std::uint64_t cut_bytes = 0;
};

/// For a resumed run: cuts the file before the first line whose "step" is above `step`, or that is
/// damaged or incomplete. Lines without a "step" stay with what is before them. A missing file is
/// an empty one. Throws error if the file cannot be changed.
cut_report truncate_after(const std::filesystem::path& path, std::uint64_t step);

/// "step" of the last line with this "kind"; 0: there is none, or no file.
std::uint64_t last_step_of_kind(const std::filesystem::path& path, std::string_view kind);

}  // namespace dflash

// A JSON file from outside (config.json, an index), read strictly: one error type that names file,
// line and key. Python writes the tokens Infinity and NaN, which JSON lacks: they are tolerated in
// keys that nobody reads and refused in those that somebody does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

class json_file {
public:
  json_file() = default;

  // Throws dflash::error: unreadable, not JSON (file:line:column), a key given twice, too large.
  static json_file open(const std::filesystem::path& path);
  static json_file parse(std::string text, std::filesystem::path name);

  const std::filesystem::path& path() const { return path_; }
  const std::string& text() const { return text_; }
  const nlohmann::json& root() const { return root_; }

  // Keys are paths with dots, "rope_scaling.factor". A key with the value null counts as absent.
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const nlohmann::json* find(std::string_view key) const;  // nullptr if absent or null
  std::string where(std::string_view key) const;           // "config.json:12 key"

  // The typed value; throws dflash::error with file, line and key if it is absent (forms without
  // a default) or of another type. Integers are integers: 16.0 and 1e30 are refused.
  int64_t get_int(std::string_view key) const;
  int64_t get_int(std::string_view key, int64_t fallback) const;
  // A limit that tools write as "none" by a huge number: anything above `most` becomes `most`.
  int64_t get_limit(std::string_view key, int64_t fallback, int64_t most) const;
  double get_real(std::string_view key) const;  // finite
  double get_real(std::string_view key, double fallback) const;
  bool get_bool(std::string_view key) const;
  bool get_bool(std::string_view key, bool fallback) const;
  std::string get_string(std::string_view key) const;
  std::string get_string(std::string_view key, std::string fallback) const;
  std::vector<std::string> get_strings(std::string_view key) const;
  // One integer or a list of them (end-of-text ids); empty if absent.
  std::vector<int64_t> get_ints(std::string_view key) const;

private:
  std::filesystem::path path_;
  std::string text_;
  nlohmann::json root_;
  std::map<std::string, int, std::less<>> lines_;  // key path -> line
};

}  // namespace dflash

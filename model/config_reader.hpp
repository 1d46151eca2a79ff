// The keys of a model's configuration, in the object of config.json that describes the language
// model: the file itself, or text_config of a wrapper. Errors name file, line and the whole key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/json_file.hpp"

namespace dflash {

class config_reader {
public:
  // `inside`: "" or the path of an object, such as "text_config". The file must outlive the reader.
  config_reader(const json_file& file, std::string_view inside);

  const json_file& file() const { return *file_; }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  std::string where(std::string_view name) const { return file_->where(key(name)); }
  bool has(std::string_view name) const { return file_->has(key(name)); }
  bool states(std::string_view name) const;  // null counts too
  // The key of a wrapper's top level where it stands there, else the one inside.
  std::string outer_or_own(std::string_view name) const;

  int64_t size(std::string_view name) const;  // 1 to 2^24; products of sizes never overflow
  // fallback 0: the key is required.
  int64_t size(std::string_view name, int64_t fallback) const;
  double real(std::string_view name, double fallback) const;
  bool flag(std::string_view name, bool fallback) const;
  std::string text(std::string_view name, std::string fallback) const;

  // Throws dflash::error at the key.
  [[noreturn]] void refuse(std::string_view name, const std::string& what) const;

private:
  const json_file* file_;
  std::string prefix_;  // with its dot
};

}  // namespace dflash

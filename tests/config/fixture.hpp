// A configuration file for one test, and the error that a call throws.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "config/error.hpp"
#include "config/run_config.hpp"

namespace dflash::test {

class toml_file {
public:
  explicit toml_file(const std::string& text) {
    static std::atomic<int> count{0};
    path_ =
        std::filesystem::temp_directory_path() /
        ("dflash_config_" + std::to_string(::getpid()) + "_" + std::to_string(count++) + ".toml");
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~toml_file() { std::filesystem::remove(path_); }
  toml_file(const toml_file&) = delete;
  toml_file& operator=(const toml_file&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string at(const std::string& line_and_column) const {
    return path_.string() + ":" + line_and_column;
  }

private:
  std::filesystem::path path_;
};

template <class Call>
error error_of(Call&& call) {
  try {
    call();
  } catch (const error& e) {
    return e;
  }
  FAIL("no error was thrown");
  return error("unreachable");
}

/// The least that validate() accepts.
inline run_config complete_config() {
  run_config c;
  c.run.dir = "runs/x";
  c.target.path = "models/t";
  c.draft.taps = {1, 2};
  c.draft.mask_token_id = 16;
  c.data.train = {"a.safetensors"};
  return c;
}

}  // namespace dflash::test

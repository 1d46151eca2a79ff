// The folder of a training run: taken by one process at a time, filled with what is needed to
// repeat and to resume it.
#pragma once

#include <filesystem>
#include <string>

#include "data/files.hpp"

namespace dflash {

class run_folder {
public:
  /// Makes the folder if it is missing and locks it. Throws error if it cannot be written, if
  /// another process trains in it, or if it holds a run and `resume` is false.
  run_folder(std::filesystem::path path, bool resume);
  ~run_folder();  // removes `address` and `metrics_address`
  run_folder(const run_folder&) = delete;
  run_folder& operator=(const run_folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path kept_states() const { return path_ / "hidden_states.bin"; }
  std::filesystem::path summary() const { return path_ / "summary.json"; }
  std::filesystem::path address() const { return path_ / "address"; }
  std::filesystem::path metrics_address() const { return path_ / "metrics_address"; }
  std::filesystem::path tensorboard() const { return path_ / "tensorboard"; }
  std::filesystem::path trace() const { return path_ / "trace.json"; }

private:
  std::filesystem::path path_;
  file_descriptor lock_;
};

/// HOST and PORT of "127.0.0.1:4242"; throws error naming `where`.
struct network_address {
  std::string host;
  uint16_t port = 0;
};
network_address parse_address(const std::string& text, const std::string& where);

/// Throws error naming `where` unless this process could listen there now: found before a model is
/// loaded, not after.
void check_can_listen(const network_address& address, const std::string& where);

}  // namespace dflash

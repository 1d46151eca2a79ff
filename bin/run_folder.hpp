// The folder of a training run: taken by one process at a time, filled with what is needed to
// repeat and to resume it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "data/files.hpp"

namespace dflash {

/// Paths that a command has made: gone again at its end, the last one first, unless they are kept.
/// Folders that others have put something into stay.
class provisional_paths {
public:
  provisional_paths() = default;
  ~provisional_paths();
  provisional_paths(const provisional_paths&) = delete;
  provisional_paths& operator=(const provisional_paths&) = delete;

  void add(std::filesystem::path path) { paths_.push_back(std::move(path)); }
  void keep() { paths_.clear(); }

private:
  std::vector<std::filesystem::path> paths_;
};

class run_folder {
public:
  /// Makes the folder if it is missing and locks it. Throws error if it cannot be written, if
  /// another process trains in it, or if it holds a run and `resume` is false.
  run_folder(std::filesystem::path path, bool resume);
  ~run_folder();  // removes `address` and `metrics_address`, and what it made unless that is kept
  run_folder(const run_folder&) = delete;
  run_folder& operator=(const run_folder&) = delete;

  /// A run begins to be written here. Until then the folder, if it was not there, is as if it had
  /// not been made: a refused command leaves nothing behind.
  void keep() { made_.keep(); }

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
  provisional_paths made_;  // goes while the lock is held
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

#include "bin/own_checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "config/error.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

// "optim.lr was 1e-3, is 2e-3; ...": what decides a run's bits and differs from the checkpoint's.
std::string config_changes(const run_config& config, const fs::path& checkpoint, std::string& key) {
  const run_config before = parse_run_config(checkpoint / "config.toml");
  const auto keys = differing_keys(before, config, true);
  std::vector<std::string> changes;
  for (const std::string& k : keys)
    changes.push_back(
        fmt::format("{} was {}, is {}", k, value_text(before, k), value_text(config, k)));
  if (!keys.empty()) key = keys.front();
  return fmt::format("{}", fmt::join(changes, "; "));
}

}  // namespace

void check_resumed_config(const run_config& config, const checkpoint_scan& scan) {
  std::string key;
  const std::string changes = config_changes(config, *scan.newest, key);
  if (changes.empty()) return;
  throw error("a run cannot be resumed with another configuration: " + changes,
              scan.newest->string(),
              "restore " + key + ", or start a new run in another run.dir");
}

checkpoint_check own_config(const run_config& config) {
  return [&config](const fs::path& folder, const checkpoint_state&) -> std::string {
    try {
      std::string key;
      const std::string changes = config_changes(config, folder, key);
      return changes.empty() ? std::string() : "another run's: " + changes;
    } catch (const std::exception& e) {
      return e.what();
    }
  };
}

checkpoint_scan choose_checkpoint(const fs::path& checkpoints, const checkpoint_check& suits) {
  checkpoint_scan scan = find_checkpoint(checkpoints, suits);
  for (const auto& r : scan.refusals) spdlog::warn("checkpoint {} is not used: {}", r.name, r.why);
  if (!scan.latest_note.empty()) spdlog::warn("{}", scan.latest_note);
  if (scan.newest) return scan;
  if (scan.nothing_there) {
    spdlog::warn("no checkpoint in {} yet: starts from the beginning", checkpoints.string());
    return scan;
  }
  std::string list;
  for (const auto& r : scan.refusals) list += "\n  " + r.name + ": " + r.why;
  throw std::runtime_error(
      "no good checkpoint in " + checkpoints.string() + ":" + list +
      "\nnothing is started from scratch by itself: restore one of them, or start "
      "a new run in another run.dir");
}

void drop_foreign_checkpoint(checkpoint_scan& scan,
                             const run_config& config,
                             const fs::path& checkpoints,
                             const std::string& target_hash,
                             const std::string& data_hash) {
  const auto foreign = [&](const checkpoint_state& state) -> std::string {
    if (state.target_hash != target_hash)
      return "another run's: its target has the content hash " + state.target_hash;
    if (state.data_hash != data_hash)
      return "another run's: its training documents have the checksum " + state.data_hash;
    return {};
  };
  const std::string why = foreign(scan.state);
  if (why.empty()) return;
  const auto suits = own_config(config);
  checkpoint_scan again =
      find_checkpoint(checkpoints, [&](const fs::path& folder, const checkpoint_state& state) {
        const std::string problem = suits(folder, state);
        return problem.empty() ? foreign(state) : problem;
      });
  if (!foreign(again.state).empty()) return;  // none: the caller says more about the newest
  spdlog::warn("checkpoint {} is not used: {}", scan.newest->filename().string(), why);
  scan = std::move(again);
}

}  // namespace dflash

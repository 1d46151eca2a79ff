#include "model/checkpoint_retention.hpp"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "config/error.hpp"
#include "data/files.hpp"
#include "model/checkpoint.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

constexpr const char* unfinished = ".tmp";

bool is_unfinished(const std::string& name) {
  const std::string suffix = unfinished;
  return name.ends_with(suffix) &&
         checkpoint_number(name.substr(0, name.size() - suffix.size())).has_value();
}

// Renamed first, so that no half removed folder carries the name of a checkpoint.
void remove_folder(const fs::path& folder) {
  fs::path aside = folder;
  aside += unfinished;
  fs::remove_all(aside);
  fs::rename(folder, aside);
  fs::remove_all(aside);
}

}  // namespace

void prune_checkpoints(const fs::path& checkpoints, const checkpoint_retention& rule) {
  DFLASH_CHECK(rule.keep >= 1, "a run keeps at least one checkpoint", rule.keep);
  std::vector<std::pair<uint64_t, fs::path>> whole;  // as far as names and sizes tell
  std::vector<fs::path> left_over;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename();
    if (is_unfinished(name)) left_over.push_back(entry.path());
    const auto number = checkpoint_number(name);
    if (number && check_checkpoint(entry.path(), false).empty())
      whole.emplace_back(*number, entry.path());
  }
  for (const fs::path& folder : left_over) fs::remove_all(folder);
  std::sort(whole.rbegin(), whole.rend());
  const auto best = linked_checkpoint(checkpoints, "best");
  const auto is_kept = [&](uint64_t steps) {
    return (rule.keep_every > 0 && steps % rule.keep_every == 0) || steps == best ||
           std::count(rule.kept_steps.begin(), rule.kept_steps.end(), steps) > 0;
  };
  for (size_t i = static_cast<size_t>(rule.keep); i < whole.size(); ++i)
    if (!is_kept(whole[i].first)) remove_folder(whole[i].second);
}

void point_link(const fs::path& checkpoints, const char* name, uint64_t steps) {
  const fs::path aside = checkpoints / (std::string(name) + ".tmp");
  fs::remove(aside);
  fs::create_directory_symlink(checkpoint_folder({}, steps), aside);
  fs::rename(aside, checkpoints / name);
  fsync_directory(checkpoints);
}

std::optional<uint64_t> linked_checkpoint(const fs::path& checkpoints, const char* name) {
  std::error_code failure;
  const fs::path to = fs::read_symlink(checkpoints / name, failure);
  return failure ? std::nullopt : checkpoint_number(to.string());
}

}  // namespace dflash

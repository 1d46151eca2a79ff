// A finished run in one page: what was asked for, how it went, where the time was spent. Read from
// the files of its folder, written as text or as one HTML file without outside resources; two runs
// stand side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "observe/bottleneck.hpp"

namespace dflash {

struct report_curve {
  std::vector<double> step, value;
};

struct run_report {
  std::string folder;
  std::string status;  // "completed", "stopped", "failed"; "no summary" if it was killed
  std::string reason;  // of a failure
  std::vector<std::pair<std::string, std::string>> figures;  // name, text; in the order to be shown
  std::vector<std::pair<std::string, std::string>> config;   // key, value: all of config.toml
  std::map<std::string, report_curve> curves;                // by name in metrics.jsonl
  // Of each actor: seconds by what it did or waited for.
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, double>>>> time;
  std::optional<bottleneck> slowest;
  std::vector<std::string> troubles;  // restarts, retired lanes, skipped steps, dropped batches
  std::vector<std::pair<std::string, double>> held_out;  // "tau humaneval", 1.4
};

/// The names in one member of all runs (figures, held_out, ...), each once, in order.
template <class Member>
std::vector<std::string> names_of(std::span<const run_report> runs, Member member) {
  std::vector<std::string> names;
  for (const run_report& r : runs)
    for (const auto& pair : r.*member)
      if (std::find(names.begin(), names.end(), pair.first) == names.end())
        names.push_back(pair.first);
  return names;
}

/// Throws error naming the file if the folder is no run, or a file of it is damaged.
run_report read_report(const std::filesystem::path& folder);

/// One or two runs.
std::string report_text(std::span<const run_report> runs);
std::string report_html(std::span<const run_report> runs);

}  // namespace dflash

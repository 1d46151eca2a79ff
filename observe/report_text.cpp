#include <algorithm>
#include <cstdio>
#include <set>

#include "observe/format.hpp"
#include "observe/report.hpp"
#include "observe/table.hpp"

namespace dflash {

namespace {

std::string number_text(double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.4g", x);
  return buffer;
}

// Column titles, and one row a name; a run that lacks a name has "-".
template <class Get>
void add_table(std::string& out,
               std::span<const run_report> runs,
               const std::string& title,
               const std::vector<std::string>& names,
               Get get) {
  if (names.empty()) return;
  std::vector<text_table::column> columns = {{title, align::left}};
  for (const run_report& r : runs) columns.push_back({r.folder, align::left});
  text_table table(std::move(columns));
  for (const std::string& name : names) {
    std::vector<std::string> row = {name};
    for (const run_report& r : runs) row.push_back(get(r, name));
    table.add_row(std::move(row));
  }
  out += table.text() + "\n";
}

template <class Pairs>
std::string text_of(const Pairs& pairs, const std::string& name) {
  for (const auto& [key, value] : pairs)
    if (key == name) return value;
  return "-";
}

}  // namespace

std::string report_text(std::span<const run_report> runs) {
  std::string out;
  add_table(out,
            runs,
            "run",
            names_of(runs, &run_report::figures),
            [](const run_report& r, const std::string& n) { return text_of(r.figures, n); });
  for (const run_report& r : runs) {
    out += r.folder + ": " + r.status + (r.reason.empty() ? "" : ": " + r.reason) + "\n";
    if (r.slowest) out += "  " + bottleneck_text(*r.slowest) + "\n";
    for (const std::string& trouble : r.troubles) out += "  " + trouble + "\n";
  }
  out += "\n";
  add_table(out,
            runs,
            "held out",
            names_of(runs, &run_report::held_out),
            [](const run_report& r, const std::string& n) -> std::string {
              for (const auto& [key, value] : r.held_out)
                if (key == n) return number_text(value);
              return "-";
            });
  add_table(out,
            runs,
            "where time went",
            names_of(runs, &run_report::time),
            [](const run_report& r, const std::string& n) {
              std::string text;
              for (const auto& [actor, causes] : r.time) {
                if (actor != n) continue;
                double all = 0;
                for (const auto& [cause, seconds] : causes) all += seconds;
                for (const auto& [cause, seconds] : causes)
                  if (all > 0 && seconds / all >= 0.005)
                    text += (text.empty() ? "" : ", ") + cause + " " + share_text(seconds / all);
              }
              return text.empty() ? std::string("-") : text;
            });
  std::vector<std::string> keys;
  for (const std::string& key : names_of(runs, &run_report::config)) {
    std::set<std::string> values;
    for (const run_report& r : runs) values.insert(text_of(r.config, key));
    if (runs.size() == 1 || values.size() > 1) keys.push_back(key);
  }
  add_table(out,
            runs,
            runs.size() > 1 ? "configuration, what differs" : "configuration",
            keys,
            [](const run_report& r, const std::string& n) { return text_of(r.config, n); });
  return out;
}

}  // namespace dflash

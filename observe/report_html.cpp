#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "observe/format.hpp"
#include "observe/report.hpp"

namespace dflash {

namespace {

constexpr const char* head = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>dflash report</title><style>
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #68707a; --line: #c9d0d8; --paper: #fff; --a: #2f78c4; --b: #d9622b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ed; --soft: #98a2ad; --line: #3c444d; --paper: #15191d; --a: #6aa7e6; --b: #e8895a; } }
body { margin: 20px auto; max-width: 1100px; padding: 0 16px; background: var(--paper); color: var(--ink); font: 14px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; }
table { border-collapse: collapse; } th, td { text-align: left; padding: 3px 14px 3px 0; vertical-align: top; border-top: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 12px; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.a { color: var(--a); } .b { color: var(--b); } .bar { display: flex; height: 14px; min-width: 240px; border-radius: 3px; overflow: hidden; }
.soft { color: var(--soft); }
</style></head><body>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string number_text(double x, const char* form = "%.4g") {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, form, x);
  return buffer;
}

const char* letter(std::size_t run) {
  return run == 0 ? "a" : "b";
}

// At most this many points a line: neighbours are averaged.
constexpr std::size_t most_points = 600;

report_curve thinned(const report_curve& c) {
  const std::size_t group = (c.step.size() + most_points - 1) / most_points;
  if (group <= 1) return c;
  report_curve out;
  for (std::size_t first = 0; first < c.step.size(); first += group) {
    const std::size_t n = std::min(group, c.step.size() - first);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += c.value[first + i];
    out.step.push_back(c.step[first + n - 1]);
    out.value.push_back(sum / static_cast<double>(n));
  }
  return out;
}

std::string plot(std::span<const run_report> runs, const std::string& name) {
  constexpr double left = 52, right = 412, top = 10, bottom = 150;
  double low = INFINITY, high = -INFINITY, last = 1;
  std::vector<report_curve> curves;
  for (const run_report& r : runs) {
    const auto found = r.curves.find(name);
    curves.push_back(found == r.curves.end() ? report_curve{} : thinned(found->second));
    for (const double v : curves.back().value) {
      low = std::min(low, v);
      high = std::max(high, v);
    }
    if (!curves.back().step.empty()) last = std::max(last, curves.back().step.back());
  }
  if (!(high >= low)) return "";
  if (high - low < 1e-12) {
    low -= 0.5;
    high += 0.5;
  }
  const auto x = [&](double step) { return left + (right - left) * step / last; };
  const auto y = [&](double v) { return bottom - (bottom - top) * (v - low) / (high - low); };
  std::string svg = "<figure style=\"margin:0\"><figcaption>" + escaped(name) +
                    "</figcaption><svg viewBox=\"0 0 420 172\" role=\"img\">";
  for (const double v : {low, (low + high) / 2, high})
    svg += "<line x1=\"52\" x2=\"412\" y1=\"" + number_text(y(v), "%.1f") + "\" y2=\"" +
           number_text(y(v), "%.1f") + "\" stroke=\"var(--line)\"/><text x=\"47\" y=\"" +
           number_text(y(v) + 4, "%.1f") + "\" text-anchor=\"end\">" + number_text(v, "%.3g") +
           "</text>";
  svg += "<text x=\"52\" y=\"167\">step 0</text><text x=\"412\" y=\"167\" text-anchor=\"end\">" +
         number_text(last, "%.0f") + "</text>";
  for (std::size_t run = 0; run < curves.size(); ++run) {
    std::string points;
    for (std::size_t i = 0; i < curves[run].step.size(); ++i)
      points += number_text(x(curves[run].step[i]), "%.1f") + "," +
                number_text(y(curves[run].value[i]), "%.1f") + " ";
    svg += "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"var(--" +
           std::string(letter(run)) + ")\" points=\"" + points + "\"/>";
  }
  return svg + "</svg></figure>\n";
}

std::string heading_row(std::span<const run_report> runs) {
  std::string row = "<tr><th></th>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    row += "<th class=\"" + std::string(letter(i)) + "\">" + escaped(runs[i].folder) + "</th>";
  return row + "</tr>\n";
}

template <class Pairs>
std::string find_text(const Pairs& pairs, const std::string& name) {
  for (const auto& [key, value] : pairs)
    if (key == name) return value;
  return "–";
}

template <class Cell>  // HTML of one run's cell
std::string table(std::span<const run_report> runs,
                  const std::vector<std::string>& names,
                  Cell cell) {
  std::string out = "<table>" + heading_row(runs);
  for (const std::string& name : names) {
    out += "<tr><th>" + escaped(name) + "</th>";
    for (const run_report& r : runs) out += "<td>" + cell(r, name) + "</td>";
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

// A bar in which computing is full and each wait is lighter.
std::string time_cell(const run_report& r, const std::string& actor) {
  for (const auto& [name, causes] : r.time) {
    if (name != actor) continue;
    double all = 0;
    for (const auto& [cause, seconds] : causes) all += seconds;
    if (all <= 0) return "–";
    std::string bar, text;
    int wait = 0;
    for (const auto& [cause, seconds] : causes) {
      const double share = seconds / all;
      const double opacity = cause == "computing" ? 1.0 : std::max(0.12, 0.42 - 0.12 * wait++);
      bar += "<span style=\"width:" + number_text(100 * share, "%.2f") +
             "%;background:var(--a);opacity:" + number_text(opacity, "%.2f") + "\" title=\"" +
             escaped(cause) + "\"></span>";
      if (share >= 0.005)
        text += (text.empty() ? "" : ", ") + escaped(cause) + " " + share_text(share);
    }
    return "<div class=\"bar\">" + bar + "</div><span class=\"soft\">" + text + "</span>";
  }
  return "–";
}

std::string verdicts(std::span<const run_report> runs) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const run_report& r = runs[i];
    out += "<p><b class=\"" + std::string(letter(i)) + "\">" + escaped(r.folder) +
           "</b>: " + escaped(r.status) + (r.reason.empty() ? "" : ": " + escaped(r.reason));
    if (r.slowest) out += "<br>" + escaped(bottleneck_text(*r.slowest));
    for (const std::string& trouble : r.troubles) out += "<br>" + escaped(trouble);
    if (r.troubles.empty()) out += "<br>No restarts, no skipped steps, no dropped batches.";
    out += "</p>\n";
  }
  return out;
}

}  // namespace

std::string report_html(std::span<const run_report> runs) {
  std::string out = std::string(head) + "<h1>dflash report</h1>\n" + verdicts(runs);
  out += table(runs, names_of(runs, &run_report::figures), [](const auto& r, const auto& name) {
    return escaped(find_text(r.figures, name));
  });
  if (const auto names = names_of(runs, &run_report::held_out); !names.empty())
    out += "<h2>Held out</h2>\n" + table(runs, names, [](const auto& r, const auto& name) {
             for (const auto& [key, value] : r.held_out)
               if (key == name) return number_text(value);
             return std::string("–");
           });
  out += "<h2>Curves</h2>\n<div class=\"curves\">";
  for (const char* name : {"loss",
                           "accept_len",
                           "acc",
                           "eal",
                           "grad_norm",
                           "lr",
                           "time/tokens_per_s",
                           "time/targets_wait",
                           "time/drafters_wait"})
    out += plot(runs, name);
  out += "</div>\n<h2>Where the time went</h2>\n" +
         table(runs, names_of(runs, &run_report::time), time_cell);
  out += "<h2>Configuration</h2>\n";
  if (runs.size() > 1) out += "<p class=\"soft\">What differs is bold.</p>\n";
  out += table(runs, names_of(runs, &run_report::config), [&](const auto& r, const auto& name) {
    const std::string value = find_text(r.config, name);
    const bool differs = std::any_of(runs.begin(), runs.end(), [&](const run_report& other) {
      return find_text(other.config, name) != value;
    });
    return differs ? "<b>" + escaped(value) + "</b>" : escaped(value);
  });
  return out + "</body></html>\n";
}

}  // namespace dflash

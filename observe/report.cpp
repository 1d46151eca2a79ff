// The files of a run folder, read for its report.
#include "observe/report.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "config/key_names.hpp"
#include "config/run_config.hpp"
#include "observe/format.hpp"
#include "observe/metrics_line.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

using json_value = nlohmann::ordered_json;

constexpr std::uintmax_t largest_file = 1 << 30;

std::string read_text(const fs::path& path) {
  std::error_code problem;
  const auto size = fs::file_size(path, problem);
  if (problem || size > largest_file)
    throw error("cannot be read: " + (problem ? problem.message() : "larger than 1 GB"),
                path.string(),
                "dflash report RUN, RUN a folder that `dflash train` made");
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

json_value read_object(const fs::path& path) {
  const auto json = json_value::parse(read_text(path), nullptr, false);
  if (!json.is_object())
    throw error("is no JSON object", path.string(), "the file is damaged; the others still stand");
  return json;
}

std::string number_text(double x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.4g", x);
  return buffer;
}

// 0 where it is missing or no number.
double number(const json_value& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<double>() : 0.0;
}

void read_curves(run_report& r, const fs::path& path) {
  if (!fs::exists(path)) return;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto json = json_value::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step")) continue;  // cut off by a crash
    const double step = number(json, "step");
    const auto kind = json.find("kind");  // of an evaluation in the course of training
    const std::string prefix = kind != json.end() && *kind == "eval" ? "eval/" : "";
    for (const scalar& s : scalars_of(line)) {
      report_curve& curve = r.curves[prefix + s.name];
      curve.step.push_back(step);
      curve.value.push_back(s.value);
    }
  }
}

void read_config(run_report& r, const fs::path& path) {
  const run_config config = parse_run_config(path);
  for (const std::string& key : config_keys()) r.config.emplace_back(key, value_text(config, key));
}

void read_time(run_report& r, const json_value& here) {
  const auto actors = here.find("actors");
  if (actors == here.end() || !actors->is_object()) return;
  for (const auto& [name, spent] : actors->items()) {
    std::vector<std::pair<std::string, double>> causes;
    if (spent.is_object())
      for (const auto& [cause, seconds] : spent.items())
        if (seconds.is_number()) causes.emplace_back(cause, seconds.get<double>());
    std::stable_sort(causes.begin(), causes.end(), [](const auto& a, const auto& b) {
      return a.second > b.second;
    });
    r.time.emplace_back(name, std::move(causes));
  }
}

void find_slowest(run_report& r) {
  std::map<std::string, stage_load> loads;
  for (const auto& [name, causes] : r.time) {
    const std::string kind = name.substr(0, name.rfind(' '));
    if (kind != "loader" && kind != "target_forward" && kind != "postprocess" &&
        kind != "drafter_train")
      continue;
    double all = 0, busy = 0;
    for (const auto& [cause, seconds] : causes) {
      if (cause == "ended" || cause == "retired") continue;
      all += seconds;
      if (cause == "computing") busy += seconds;
    }
    stage_load& load = loads[kind];
    load.name = kind;
    ++load.lanes;
    if (all > 0) load.busy += busy / all;
  }
  std::vector<stage_load> stages;
  for (auto& [kind, load] : loads) {
    load.busy /= load.lanes;
    stages.push_back(load);
  }
  r.slowest = find_bottleneck(stages);
}

void read_troubles(run_report& r, const json_value& summary, const json_value& here) {
  const auto say = [&](const json_value& from, const char* key, const char* what) {
    if (const double n = number(from, key); n > 0) r.troubles.push_back(number_text(n) + what);
  };
  say(summary, "skipped_steps", " steps skipped: their gradient was not finite or their weight 0");
  say(summary, "dropped_batches", " batches dropped: not finite twice");
  say(here, "refused_messages", " messages refused by a mailbox limit");
  const auto restarts = here.find("restarts_of");
  if (restarts != here.end() && restarts->is_object())
    for (const auto& [actor, n] : restarts->items())
      r.troubles.push_back(actor + " restarted " + n.dump() + " times");
  const auto retired = here.find("retired");
  if (retired != here.end() && retired->is_array())
    for (const auto& actor : *retired)
      if (actor.is_string()) r.troubles.push_back(actor.get<std::string>() + " retired");
}

void read_summary(run_report& r, const fs::path& path) {
  if (!fs::exists(path)) {
    r.status = "no summary: it still runs, or was killed";
    return;
  }
  const json_value summary = read_object(path);
  const auto text = [&](const char* key) {
    const auto found = summary.find(key);
    return found != summary.end() && found->is_string() ? found->get<std::string>() : "";
  };
  r.status = text("status");
  r.reason = text("reason");
  const json_value here = summary.value("this_process", json_value::object());
  const auto add = [&](const char* name, std::string value) {
    r.figures.emplace_back(name, std::move(value));
  };
  add("steps",
      number_text(number(summary, "steps")) + " of " + number_text(number(summary, "total_steps")));
  add("loss", number_text(number(summary, "loss_smooth")));
  add("accept_len", number_text(number(summary, "accept_len")));
  add("time",
      duration_text(
          std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * number(here, "seconds")))));
  add("speed", rate_text(number(here, "tokens_per_s"), "tokens"));
  add("parameters", count_text(number(summary, "parameters")));
  add("limit of bytes in flight",
      bytes_text(static_cast<std::uint64_t>(number(here, "limit_bytes"))));
  add("peak of bytes in flight",
      bytes_text(static_cast<std::uint64_t>(number(here, "peak_bytes"))));
  add("share of bytes that must move", share_text(number(here, "moved_share")));
  read_troubles(r, summary, here);
  read_time(r, here);
  find_slowest(r);
}

// What `dflash eval --json RUN/eval.json` wrote, and anything that is named eval-*.json.
void read_held_out(run_report& r, const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("eval") && entry.path().extension() == ".json")
      files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const json_value json = read_object(file);
    const std::string prefix = files.size() > 1 ? file.stem().string() + " " : "";
    for (const char* figure : {"tau", "accept_len"}) {
      const auto sets = json.find(figure);
      if (sets == json.end() || !sets->is_object()) continue;
      for (const auto& [set, value] : sets->items())
        if (value.is_number())
          r.held_out.emplace_back(prefix + figure + " " + set, value.get<double>());
    }
    if (json.contains("decode_speedup") && json["decode_speedup"].is_number())
      r.held_out.emplace_back(prefix + "decode speedup", json["decode_speedup"].get<double>());
  }
  // Evaluations in the course of training stand in metrics.jsonl.
  for (const auto& [name, curve] : r.curves)
    if (name.starts_with("eval/")) r.held_out.emplace_back(name.substr(5), curve.value.back());
}

}  // namespace

run_report read_report(const fs::path& folder) {
  if (!fs::is_directory(folder) || !fs::exists(folder / "config.toml"))
    throw error("is no run folder: it has no config.toml",
                folder.string(),
                "dflash report RUN, RUN a folder that `dflash train` made");
  run_report r;
  r.folder = folder.string();
  read_config(r, folder / "config.toml");
  read_curves(r, folder / "metrics.jsonl");
  read_summary(r, folder / "summary.json");
  read_held_out(r, folder);
  return r;
}

}  // namespace dflash

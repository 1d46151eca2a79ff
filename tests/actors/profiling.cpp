// Stages and traces of whole runs.
#include "tests/actors/training_fixture.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

using namespace dflash;
using namespace dflash::pipeline_test;

namespace {

// With the stages inside of the target, as bin/ makes it.
void add_target_stages(training& t, const std::shared_ptr<const target>& model) {
  auto& p = t.parts();
  const auto taps = decode_test::tiny_drafter_config(4).taps;
  for (auto& capture : p.targets) {
    const auto stages = std::make_shared<stage_timer>();
    p.target_stages.push_back(stages);
    capture = [model, stages, taps](const batch& b) {
      return model->capture(b.input_ids, b.doc_offsets, taps, false, stages.get()).taps;
    };
  }
}

std::set<std::string> stages_of(const actor_profile& profile, const std::string& kind) {
  std::set<std::string> names;
  for (const auto& row : profile.rows())
    if (row.kind == kind) names.insert(row.stats.name);
  return names;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(std::string{std::istreambuf_iterator<char>(in), {}});
}

struct slice {
  double begin = 0, end = 0;
  std::string name, category;
};

}  // namespace

TEST_CASE("a profile names the stages inside of every lane and what it waited for", "[observe]") {
  training plain({.targets = 2, .drafters = 2, .noise = 0.1});
  completes(plain);
  training t({.targets = 2, .drafters = 2, .noise = 0.1});
  add_target_stages(t, decode_test::tiny_target());
  t.parts().profile = true;
  const auto result = t.run();
  REQUIRE(result.outcome.status == run_status::completed);
  CHECK(at::equal(plain.weights(), t.weights()));
  const auto has = [&](const char* kind, const std::vector<std::string>& names) {
    const auto there = stages_of(result.stages, kind);
    for (const std::string& name : names) {
      INFO(kind << ": " << name);
      CHECK(there.contains(name));
    }
  };
  has("loader", {"load batch"});
  has("target_forward",
      {"target forward",
       "embedding",
       "norm and tap, layers 0-7",
       "attention, layers 0-7",
       "MLP, layers 0-7"});
  has("postprocess",
      {"postprocess",
       "wait for the device",
       "check",
       "cast",
       "noise",
       "copy to the drafter's slot"});
  has("drafter_train",
      {"train batch",
       "anchors",
       "labels and weights",
       "mask intervals",
       "forward.fc",
       "layer forward",
       "forward.attention",
       "forward.mlp",
       "head.product",
       "head.rows",
       "head.back",
       "layer backward",
       "backward.attention",
       "reduce",
       "update",
       "clip and optimizer"});
  has("dispatcher",
      {"batch loaded",
       "lane asks",
       "batch delivered",
       "batch trained",
       "room granted",
       "hand out"});
  has("coordinator", {"step reduced", "step committed", "step noted"});
  has("metrics", {"step", "figures", "metrics.jsonl", "sinks"});
  has("checkpointer", {"save"});
  has("profiler", {"book"});
  uint64_t batches = 0, updates = 0;
  double shares = 0;
  for (const auto& row : result.stages.rows()) {
    if (row.kind != "drafter_train") continue;
    if (row.stats.name == "train batch") batches = row.stats.count;
    if (row.stats.name == "update") updates = row.stats.count;
    if (row.depth == 0) shares += row.stats.share;
    CHECK(row.stats.p50 <= row.stats.p99);
  }
  CHECK(batches == t.parts().plan->total_batches());
  CHECK(updates == 2 * t.parts().plan->total_steps());
  CHECK(shares == Approx(1.0));
  CHECK(result.stages.table().find("  anchors") != std::string::npos);
}

TEST_CASE("without profiling there is no profiler and nothing is recorded", "[observe]") {
  training t({});
  const auto result = t.run();
  CHECK(result.stages.empty());
  CHECK(std::none_of(result.mailboxes.begin(), result.mailboxes.end(), [](const auto& m) {
    return m.actor == "profiler";
  }));
}

TEST_CASE("a trace nests its stages, follows each batch, and its times rise", "[observe]") {
  const test::scratch_folder folder;
  training t({.targets = 2, .drafters = 2, .accumulation = 2, .noise = 0.1});
  add_target_stages(t, decode_test::tiny_target());
  t.parts().trace = trace_options{{3, 7}, folder.path() / "trace.json"};
  completes(t);
  const auto json = read_json(folder.path() / "trace.json");
  std::map<int, std::string> tracks;
  std::map<int, std::vector<slice>> slices;
  struct point {
    double at;
    std::string phase;
    int track;
  };
  std::map<uint64_t, std::vector<point>> flows;
  std::set<std::string> counters, categories;
  double last = 0;
  for (const auto& e : json.at("traceEvents")) {
    const std::string phase = e.at("ph");
    CHECK(e.at("pid") == 1);
    if (phase == "M") {
      if (e.at("name") == "thread_name") tracks[e.at("tid")] = e.at("args").at("name");
      continue;
    }
    const double at = e.at("ts");
    CHECK(at >= last);
    last = at;
    if (phase == "X") {
      CHECK(e.at("dur") >= 0.0);
      slices[e.at("tid")].push_back(
          {at, at + e.at("dur").get<double>(), e.at("name"), e.at("cat")});
      categories.insert(e.at("cat").get<std::string>());
    } else if (phase == "C") {
      counters.insert(e.at("name").get<std::string>());
    } else {
      CHECK((phase == "s" || phase == "t" || phase == "f"));
      flows[e.at("id")].push_back({at, phase, e.at("tid")});
    }
  }
  std::set<std::string> names;
  for (const auto& [id, name] : tracks) names.insert(name);
  for (const char* actor : {"loader",
                            "dispatcher",
                            "target_forward 0",
                            "postprocess 0",
                            "drafter_train 0",
                            "drafter_train 1",
                            "coordinator",
                            "metrics"})
    CHECK(names.contains(actor));
  CHECK((categories == std::set<std::string>{"stage", "wait"}));
  CHECK(counters.contains("drafter_train 0 bytes"));
  CHECK(counters.contains("drafter_train 1 credits"));

  constexpr double rounding = 0.0015;  // times have three decimals
  for (auto& [track, all] : slices) {
    REQUIRE(tracks.contains(track));
    std::stable_sort(all.begin(), all.end(), [](const slice& a, const slice& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<slice> open;
    for (const slice& s : all) {
      while (!open.empty() && open.back().end <= s.begin + rounding) open.pop_back();
      INFO(tracks[track] << ": " << s.name << " in " << (open.empty() ? "" : open.back().name));
      if (!open.empty()) CHECK(s.end <= open.back().end + rounding);
      if (s.category == "wait") CHECK(open.empty());
      open.push_back(s);
    }
  }

  const uint64_t first_k = t.parts().plan->step(2).first_k, end_k = t.parts().plan->step(6).last_k;
  CHECK(flows.size() == end_k - first_k);
  for (const auto& [k, points] : flows) {
    INFO("batch " << k);
    CHECK(k >= first_k);
    CHECK(k < end_k);
    REQUIRE(points.size() >= 3);
    CHECK(points.front().phase == "s");
    CHECK(points.back().phase == "f");
    CHECK(tracks[points.back().track] == "drafter_train " + std::to_string(k % 2));
    for (size_t i = 1; i + 1 < points.size(); ++i) CHECK(points[i].phase == "t");
    for (const point& p : points)
      CHECK(std::any_of(slices[p.track].begin(), slices[p.track].end(), [&](const slice& s) {
        return s.begin <= p.at && p.at <= s.end;
      }));
  }
}

TEST_CASE("a run that ends within its window writes the trace that there is", "[observe]") {
  const test::scratch_folder folder;
  training t({.steps = 4});
  t.parts().trace = trace_options{{3, 900}, folder.path() / "trace.json"};
  completes(t);
  CHECK(read_json(folder.path() / "trace.json").at("traceEvents").size() > 20);
  training failing({.steps = 20});
  failing.parts().trace = trace_options{{2, 900}, folder.path() / "other.json"};
  failing.parts().drafters[0].accumulate =
      [inner = failing.parts().drafters[0].accumulate](
          const drafter_input& input, bool measured, const accumulate_watch& watch) {
        if (input.tokens->k >= 5) throw std::runtime_error("a fault");
        return inner(input, measured, watch);
      };
  CHECK(failing.run().outcome.status == run_status::failed);
  const auto json = read_json(folder.path() / "other.json");
  std::map<uint64_t, int> balance;
  for (const auto& e : json.at("traceEvents")) {
    if (e.at("ph") == "s") ++balance[e.at("id")];
    if (e.at("ph") == "f") --balance[e.at("id")];
  }
  CHECK_FALSE(balance.empty());
  for (const auto& [k, sum] : balance) CHECK(sum == 0);
}

TEST_CASE("a trace that cannot be written stops nothing", "[observe]") {
  training t({.steps = 6});
  t.parts().trace = trace_options{{1, 3}, "/nonexistent/trace.json"};
  completes(t);
}

#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "config/keys.hpp"
#include "tests/config/fixture.hpp"

namespace dflash {

using test::complete_config;
using test::toml_file;
using names = std::vector<std::string>;

namespace {

run_config unusual_config() {
  run_config c = complete_config();
  c.run = {.dir = "a \"b\" \\ c \xc3\xa9", .seed = 9223372036854775807ull, .resume = true};
  c.target.dtype = "fp32";
  c.draft.layers = 2;
  c.draft.layer_types = {"sliding_attention", "full_attention"};
  c.draft.sliding_window = 7;
  c.draft.causal = true;
  c.data.keep_hidden_states = 3ull << 30;
  c.data.noise = 1.0 / 3.0;
  c.loss.terms = {{"ce", 0.1}, {"kl", 1e-300}};
  c.optim.lr = 1e-7;
  c.optim.betas = {0.0, 0.123456789012345678};
  c.optim.warmup = {.share = 0.0, .steps = 1};
  c.optim.decay = {.share = 1.0, .steps = -1};
  c.optim.clip = 1e22;
  c.layout.max_in_flight = 123'456'789;
  c.layout.drafters = {"cuda:0", "cuda:1"};
  c.layout.nodes = {{"b.2", "[::1]:7000"}, {"nodeA", "10.0.0.2:7000"}};
  c.net.timeout = 2.25;
  c.net.insecure = true;
  return c;
}

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("what is printed reads back as the same configuration") {
  for (const run_config& c : {run_config{}, complete_config(), unusual_config()}) {
    const toml_file file(to_toml(c));
    CHECK(parse_run_config(file.path()) == c);
  }
}

TEST_CASE("a single printed value works as an override") {
  const run_config c = unusual_config();
  names overrides;
  for (const detail::key& k : detail::keys())
    overrides.push_back("--" + std::string(k.name) + "=" + value_text(c, std::string(k.name)));
  CHECK(parse_run_config({}, overrides) == c);
}

TEST_CASE("every key is in a known section, has a meaning, and no two share a name") {
  names seen;
  for (const detail::key& k : detail::keys()) {
    CHECK(std::find(seen.begin(), seen.end(), k.name) == seen.end());
    seen.emplace_back(k.name);
    CHECK_FALSE(k.help.empty());
    const auto sections = detail::sections();
    CHECK(std::any_of(sections.begin(), sections.end(), [&](const detail::section& s) {
      return s.name == k.section();
    }));
  }
}

TEST_CASE("changed keys are named, and those that a resumed run may change are told apart") {
  const run_config a = complete_config();
  run_config b = a;
  CHECK(differing_keys(a, b).empty());
  b.optim.lr = 1.0;
  b.data.anchors = 3;
  b.metrics.every = 1;
  b.layout.targets = {"cpu:0", "cpu:1", "cpu:2"};
  b.layout.drafters = {"cpu:5"};
  b.run.resume = true;
  CHECK(differing_keys(a, b) == names{"run.resume",
                                      "data.anchors",
                                      "optim.lr",
                                      "layout.targets",
                                      "layout.drafters",
                                      "metrics.every"});
  CHECK(differing_keys(a, b, true) == names{"data.anchors", "optim.lr"});
}

TEST_CASE("another number of drafters is a change that a resumed run must not make") {
  const run_config a = complete_config();
  run_config b = a;
  b.layout.drafters = {"cpu:0", "cpu:1"};
  CHECK(differing_keys(a, b, true) == names{"layout.drafters"});
}

TEST_CASE("values are shown as they stand in TOML") {
  const run_config c = unusual_config();
  CHECK(value_text(c, "draft.taps") == "[1, 2]");
  CHECK(value_text(c, "data.keep_hidden_states") == "\"3 GiB\"");
  CHECK(value_text(c, "optim.warmup") == "1");
  CHECK(value_text(c, "optim.decay") == "1.0");
  CHECK(value_text(run_config{}, "draft.causal") == "(not set)");
}

TEST_CASE("docs/configuration.md is what the program prints") {
  INFO("made by: dflash config --reference > docs/configuration.md");
  CHECK(file_text(DFLASH_TEST_DATA "/../../docs/configuration.md") == reference_markdown());
}

TEST_CASE("the presets are valid") {
  for (const char* name : {"quickstart", "smollm2"}) {
    CAPTURE(name);
    CHECK_NOTHROW(
        load_run_config(std::string(DFLASH_TEST_DATA "/../../config/presets/") + name + ".toml"));
  }
}

}  // namespace dflash

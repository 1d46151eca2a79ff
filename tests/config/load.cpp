#include <catch2/catch.hpp>

#include "tests/config/fixture.hpp"

namespace dflash {

using test::error_of;
using test::toml_file;

TEST_CASE("keys of a file land in their members") {
  const toml_file file(R"(
[run]
dir = "runs/a"
seed = 42
[draft]
taps = [1, 8, 14]
block_size = 5
causal = false
layer_types = ["full_attention", "sliding_attention"]
[data]
keep_hidden_states = "8 GB"
noise = 0
[loss]
terms = { ce = 0.25, kl = 1 }
[optim]
betas = [0.8, 0.99]
warmup = 100
decay = 0.3
lr = 3e-4
[layout]
targets = ["cpu:0", "cuda:3"]
)");
  const run_config c = parse_run_config(file.path());
  CHECK(c.run.dir == "runs/a");
  CHECK(c.run.seed == 42);
  CHECK(c.draft.taps == std::vector<int>{1, 8, 14});
  CHECK(c.draft.block_size == 5);
  CHECK(c.draft.causal == std::optional<bool>(false));
  CHECK(c.draft.layer_types[1] == "sliding_attention");
  CHECK(c.data.keep_hidden_states == 8'000'000'000ull);
  CHECK(c.loss.terms == std::map<std::string, double>{{"ce", 0.25}, {"kl", 1.0}});
  CHECK(c.optim.betas == std::array<double, 2>{0.8, 0.99});
  CHECK(c.optim.warmup == step_span{.share = 0.0, .steps = 100});
  CHECK(c.optim.decay == step_span{.share = 0.3, .steps = -1});
  CHECK(c.optim.lr == 3e-4);
  CHECK(c.layout.targets == std::vector<std::string>{"cpu:0", "cuda:3"});
  CHECK(c.layout.drafters == run_config{}.layout.drafters);
}

TEST_CASE("a sub-table is the same as an inline table") {
  const toml_file file("[loss.terms]\nkl = 2.0\n");
  CHECK(parse_run_config(file.path()).loss.terms == std::map<std::string, double>{{"kl", 2.0}});
}

TEST_CASE("an unknown key names its place and the nearest key") {
  const toml_file file("[draft]\nlayers = 2\nblok_size = 5\n");
  const error e = error_of([&] { parse_run_config(file.path()); });
  CHECK(e.what_ == "unknown key draft.blok_size");
  CHECK(e.where == file.at("3:1"));
  CHECK(e.hint == "did you mean draft.block_size?");
}

TEST_CASE("a key in the wrong section names the right one") {
  const toml_file file("[optim]\ngamma = 2.0\n");
  CHECK(error_of([&] { parse_run_config(file.path()); }).hint == "did you mean loss.gamma?");
  const toml_file top("gamma = 2.0\n");
  const error e = error_of([&] { parse_run_config(top.path()); });
  CHECK(e.what_ == "unknown key gamma");
  CHECK(e.hint == "did you mean loss.gamma?");
}

TEST_CASE("unknown sections are refused, near ones suggested") {
  const toml_file near("[optimizer]\n");
  CHECK(error_of([&] { parse_run_config(near.path()); }).hint == "did you mean [optim]?");
  const toml_file far("\n[something_else]\nx = 1\n");
  const error e = error_of([&] { parse_run_config(far.path()); });
  CHECK(e.what_ == "unknown section [something_else]");
  CHECK(e.where == far.at("2:2"));
  CHECK(e.hint.find("run, target, draft") != std::string::npos);
  const toml_file value("draft = 3\n");
  CHECK(error_of([&] { parse_run_config(value.path()); }).what_ ==
        "[draft] must be a section, not a value");
}

TEST_CASE("a value of the wrong type names the expected type and the place") {
  struct row {
    const char* line;
    const char* what;
  };
  const row rows[] = {
      {"[draft]\nlayers = \"two\"", "draft.layers must be a whole number, not the string \"two\""},
      {"[draft]\nlayers = 2.0", "draft.layers must be a whole number, not the number 2.0"},
      {"[draft]\ntaps = 3", "draft.taps must be a list of whole numbers, not the whole number 3"},
      {"[draft]\ntaps = [1, 2.5]",
       "draft.taps must be a list of whole numbers, not the number 2.5"},
      {"[draft]\ncausal = \"yes\"", "draft.causal must be true or false, not the string \"yes\""},
      {"[run]\ndir = 5", "run.dir must be a string, not the whole number 5"},
      {"[run]\nresume = 1", "run.resume must be true or false, not the whole number 1"},
      {"[data]\ntrain = \"a\"", "data.train must be a list of strings, not the string \"a\""},
      {"[optim]\nlr = true", "optim.lr must be a number, not true"},
      {"[optim]\nlr = 2020-01-01", "optim.lr must be a number, not a date or time"},
      {"[optim]\nbetas = 0.9", "optim.betas must be a list of two numbers, not the number 0.9"},
      {"[optim]\nwarmup = \"4%\"",
       "optim.warmup must be a share (0.0 to 1.0) or a whole number of steps, not the string "
       "\"4%\""},
      {"[loss]\nterms = [1.0]", "loss.terms must be a table of numbers, not a list"},
      {"[loss]\nterms = { ce = \"all\" }",
       "loss.terms must be a table of numbers, not the string \"all\""},
      {"[data]\nkeep_hidden_states = 1.5",
       "data.keep_hidden_states must be a size (\"8 GB\", or bytes), not the number 1.5"},
  };
  for (const row& r : rows) {
    CAPTURE(r.line);
    const toml_file file(r.line);
    const error e = error_of([&] { parse_run_config(file.path()); });
    CHECK(e.what_ == r.what);
    CHECK(e.where.starts_with(file.at("2:")));
  }
}

TEST_CASE("the hint of a wrong type shows what would do") {
  const toml_file file("[draft]\nlayers = \"two\"\n");
  CHECK(error_of([&] { parse_run_config(file.path()); }).hint == "e.g. layers = 5");
}

TEST_CASE("values out of range are refused with the range") {
  struct row {
    const char* line;
    const char* what;
  };
  const row rows[] = {
      {"[draft]\nblock_size = 1", "draft.block_size must be from 2 to 1024, not 1"},
      {"[draft]\nmask_token_id = -1", "draft.mask_token_id must be from 0 to 2147483647, not -1"},
      {"[draft]\ntaps = [0, -1]", "draft.taps must be each at least 0, not -1"},
      {"[draft]\ntaps = [4294967296]", "draft.taps must be each at least 0, not 4294967296"},
      {"[run]\nseed = -3", "run.seed must be at least 0, not -3"},
      {"[loss]\ngamma = 0", "loss.gamma must be above 0, at most 1000000, not 0.0"},
      {"[optim]\nlr = nan", "optim.lr must be above 0, at most 1000, not nan"},
      {"[optim]\nlr = inf", "optim.lr must be above 0, at most 1000, not inf"},
      {"[optim]\nlr = -1e-3", "optim.lr must be above 0, at most 1000, not -0.001"},
      {"[optim]\nclip = -1.0", "optim.clip must be at least 0, not -1.0"},
      {"[optim]\nbetas = [0.9]",
       "optim.betas must be two numbers from 0 to below 1, not a list of "
       "1"},
      {"[optim]\nbetas = [0.9, 1.0]", "optim.betas must be two numbers from 0 to below 1, not 1.0"},
      {"[optim]\nwarmup = 1.5", "optim.warmup must be from 0.0 to 1.0, or steps from 0, not 1.5"},
      {"[optim]\nwarmup = -1", "optim.warmup must be from 0.0 to 1.0, or steps from 0, not -1"},
      {"[optim]\nname = \"sgd\"", "optim.name must be one of `adamw`, `muon`, not \"sgd\""},
      {"[metrics]\nevery = 0", "metrics.every must be at least 1, not 0"},
      {"[loss]\nterms = { ce = -1.0 }",
       "loss.terms must be names `ce`, `kl`, `rkl`, `jsd`, `tv`, `nla`, `lk_hybrid`, weights at "
       "least "
       "0, not -1.0"},
      {"[loss]\nterms = { hinge = 1.0 }", "unknown name \"hinge\" in loss.terms"},
      {"[loss]\ncap_lambda = -1", "loss.cap_lambda must be at least 0, at most 1000, not -1.0"},
      {"[loss]\nprefix = 1.5", "loss.prefix must be at least 0, at most 1, not 1.5"},
      {"[loss]\ndpace_alpha = 0.0", "loss.dpace_alpha must be above 0, at most 1, not 0.0"},
      {"[optim]\nema = 1.0", "optim.ema must be at least 0, at most 0.999999, not 1.0"},
      {"[data]\nkeep_hidden_states = -1", "data.keep_hidden_states must be at least 0, not -1"},
      {"[data]\nkeep_hidden_states = \"8 gigs\"",
       "data.keep_hidden_states is not a size: \"8 gigs\""},
      {"[run]\ndir = \"a\\u0000b\"", "run.dir has a control character in it: \"a\\u0000b\""},
  };
  for (const row& r : rows) {
    CAPTURE(r.line);
    const toml_file file(r.line);
    const error e = error_of([&] { parse_run_config(file.path()); });
    CHECK(e.what_ == r.what);
    CHECK(e.where.starts_with(file.at("2:")));
  }
}

TEST_CASE("a mistyped choice suggests the nearest") {
  const toml_file file("[optim]\nschedule = \"cosin\"\n");
  CHECK(error_of([&] { parse_run_config(file.path()); }).hint == "did you mean \"cosine\"?");
}

TEST_CASE("text that is not TOML names line and column") {
  const toml_file file("[draft]\nlayers = 2\ntaps = [1, 2\n[data]\n");
  const error e = error_of([&] { parse_run_config(file.path()); });
  CHECK(e.what_.starts_with("the configuration is not TOML: "));
  CHECK(e.where.starts_with(file.at("4:")));
  const toml_file twice("[run]\nseed = 1\nseed = 2\n");
  CHECK(error_of([&] { parse_run_config(twice.path()); }).where.starts_with(twice.at("3:")));
  const toml_file binary(std::string("[run]\nseed = 1 \xff\xfe\n"));
  CHECK(error_of([&] { parse_run_config(binary.path()); }).where.starts_with(binary.at("2:")));
}

TEST_CASE("files that are not there, not files or far too large are refused by name") {
  const error missing = error_of([] { parse_run_config("/no/such/file.toml"); });
  CHECK(missing.what_ == "the configuration file does not exist");
  CHECK(missing.where == "/no/such/file.toml");
  const error folder = error_of([] { parse_run_config("/tmp"); });
  CHECK(folder.what_ == "the configuration is a folder, not a file");
  const toml_file large(std::string(2 << 20, '#'));
  CHECK(error_of([&] { parse_run_config(large.path()); }).what_ ==
        "the configuration file is larger than 1 MiB");
}

TEST_CASE("an empty file is the defaults") {
  const toml_file file("");
  CHECK(parse_run_config(file.path()) == run_config{});
  CHECK(parse_run_config({}) == run_config{});
}

}  // namespace dflash

#include <catch2/catch.hpp>

#include "tests/config/fixture.hpp"

namespace dflash {

using test::error_of;
using test::toml_file;
using texts = std::vector<std::string>;

TEST_CASE("overrides win over the file, later ones over earlier ones") {
  const toml_file file("[draft]\nlayers = 2\nblock_size = 4\n");
  const run_config c =
      parse_run_config(file.path(), {"--draft.layers=3", "draft.layers=4", "--optim.lr=1e-4"});
  CHECK(c.draft.layers == 4);
  CHECK(c.draft.block_size == 4);
  CHECK(c.optim.lr == 1e-4);
}

TEST_CASE("strings may be bare or quoted") {
  CHECK(parse_run_config({}, {"--run.dir=runs/a b=c"}).run.dir == "runs/a b=c");
  CHECK(parse_run_config({}, {"--run.dir=\"runs/a\""}).run.dir == "runs/a");
  CHECK(parse_run_config({}, {"--run.dir='runs/a'"}).run.dir == "runs/a");
  CHECK(parse_run_config({}, {"--run.dir=17"}).run.dir == "17");
  CHECK(parse_run_config({}, {"--run.dir=true"}).run.dir == "true");
  CHECK(parse_run_config({}, {"--run.dir=a\"b"}).run.dir == "a\"b");
  CHECK(parse_run_config({}, {"--run.dir="}).run.dir.empty());
}

TEST_CASE("lists may come with or without brackets and quotes") {
  const texts lanes = {"cpu:0", "cuda:1"};
  for (const char* text : {"[\"cpu:0\", \"cuda:1\"]",
                           "['cpu:0','cuda:1']",
                           "[cpu:0,cuda:1]",
                           "[cpu:0, cuda:1]",
                           "cpu:0,cuda:1"}) {
    CAPTURE(text);
    CHECK(parse_run_config({}, {std::string("--layout.targets=") + text}).layout.targets == lanes);
  }
  CHECK(parse_run_config({}, {"--data.train=a.safetensors"}).data.train == texts{"a.safetensors"});
  CHECK(parse_run_config({}, {"--data.train=[]"}).data.train.empty());
  CHECK(parse_run_config({}, {"--draft.taps=[1, 9]"}).draft.taps == std::vector<int>{1, 9});
  CHECK(parse_run_config({}, {"--draft.taps=1,9"}).draft.taps == std::vector<int>{1, 9});
  CHECK(parse_run_config({}, {"--optim.betas=0.9,0.99"}).optim.betas ==
        std::array<double, 2>{0.9, 0.99});
}

TEST_CASE("tables, sizes, shares and flags as overrides") {
  CHECK(parse_run_config({}, {"--loss.terms={ce=1,kl=0.5}"}).loss.terms ==
        std::map<std::string, double>{{"ce", 1.0}, {"kl", 0.5}});
  CHECK(parse_run_config({}, {"--loss.terms=kl=0.5"}).loss.terms ==
        std::map<std::string, double>{{"kl", 0.5}});
  CHECK(parse_run_config({}, {"--data.keep_hidden_states=8GB"}).data.keep_hidden_states ==
        8'000'000'000ull);
  CHECK(parse_run_config({}, {"--data.keep_hidden_states=512 MiB"}).data.keep_hidden_states ==
        512ull << 20);
  CHECK(parse_run_config({}, {"--data.keep_hidden_states=4096"}).data.keep_hidden_states == 4096);
  CHECK(parse_run_config({}, {"--optim.warmup=0.1"}).optim.warmup.share == 0.1);
  CHECK(parse_run_config({}, {"--optim.warmup=10"}).optim.warmup.steps == 10);
  CHECK(parse_run_config({}, {"--run.resume=true"}).run.resume);
}

TEST_CASE("mistakes in overrides name the override") {
  const error no_value = error_of([] { parse_run_config({}, {"--draft.layers"}); });
  CHECK(no_value.what_ == "\"--draft.layers\" has no value");
  const error unknown = error_of([] { parse_run_config({}, {"--draft.layer=3"}); });
  CHECK(unknown.what_ == "unknown key draft.layer");
  CHECK(unknown.where == "--draft.layer=3");
  CHECK(unknown.hint == "did you mean draft.layers?");
  const error type = error_of([] { parse_run_config({}, {"--draft.layers=three"}); });
  CHECK(type.what_ == "draft.layers must be a whole number, not the string \"three\"");
  CHECK(type.where == "--draft.layers=three");
  for (const char* text : {"--draft.layers=",
                           "--draft.layers=3\nx = 4",
                           "--draft.layers=3 # three",
                           "--draft.taps=[1,two]",
                           "--draft.taps=[1",
                           "--loss.terms={ce}",
                           "--optim.lr=1,5",
                           "--run.resume=maybe",
                           "--=1",
                           "--draft=1",
                           "=",
                           ""}) {
    CAPTURE(text);
    const auto parse = [&] { parse_run_config({}, {text}); };
    if (std::string(text) == "--draft.layers=3 # three")
      CHECK_NOTHROW(parse());  // a TOML comment
    else
      CHECK_THROWS_AS(parse(), error);
  }
}

}  // namespace dflash

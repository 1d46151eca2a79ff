#include <catch2/catch.hpp>
#include <functional>

#include "tests/config/fixture.hpp"

namespace dflash {

using test::complete_config;
using test::error_of;

TEST_CASE("a complete configuration is valid") {
  CHECK_NOTHROW(validate(complete_config()));
}

TEST_CASE("mistakes across keys name the key that is wrong") {
  struct row {
    const char* where;
    std::function<void(run_config&)> spoil;
  };
  const row rows[] = {
      {"run.dir", [](run_config& c) { c.run.dir.clear(); }},
      {"target.path", [](run_config& c) { c.target.path.clear(); }},
      {"draft.taps", [](run_config& c) { c.draft.taps.clear(); }},
      {"draft.taps",
       [](run_config& c) {
         c.draft.taps = {2, 1};
       }},
      {"draft.taps",
       [](run_config& c) {
         c.draft.taps = {1, 1};
       }},
      {"draft.mask_token_id", [](run_config& c) { c.draft.mask_token_id = -1; }},
      {"data.train", [](run_config& c) { c.data.train.clear(); }},
      {"data.train",
       [](run_config& c) {
         c.data.train = {"a", "a"};
       }},
      {"data.row_tokens", [](run_config& c) { c.data.row_tokens = c.draft.block_size - 1; }},
      {"draft.layer_types", [](run_config& c) { c.draft.layer_types = {"full_attention"}; }},
      {"draft.sliding_window",
       [](run_config& c) {
         c.draft.layers = 1;
         c.draft.layer_types = {"sliding_attention"};
       }},
      {"draft.sliding_window", [](run_config& c) { c.draft.sliding_window = 128; }},
      {"draft.kv_heads",
       [](run_config& c) {
         c.draft.heads = 9;
         c.draft.kv_heads = 2;
       }},
      {"draft.head_dim", [](run_config& c) { c.draft.head_dim = 63; }},
      {"draft.init", [](run_config& c) { c.draft.init.clear(); }},
      {"loss.terms", [](run_config& c) { c.loss.terms.clear(); }},
      {"loss.terms",
       [](run_config& c) {
         c.loss.terms = {{"ce", 0.0}};
       }},
      {"loss.weighting",
       [](run_config& c) {
         c.loss.terms = {{"kl", 1.0}};
         c.loss.weighting = "dpace";
       }},
      {"loss.dpace_alpha", [](run_config& c) { c.loss.dpace_alpha = 0.3; }},
      {"loss.temperature",
       [](run_config& c) {
         c.loss.terms = {{"ce", 1.0}, {"tv", 1.0}};
         c.loss.temperature = 2.0;
       }},
      {"loss.prefix",
       [](run_config& c) {
         c.draft.block_size = 2;
         c.loss.prefix = 0.9;
       }},
      {"optim.warmup",
       [](run_config& c) {
         c.optim.steps = 10;
         c.optim.warmup = {.share = 0.0, .steps = 11};
       }},
      {"optim.decay",
       [](run_config& c) {
         c.optim.schedule = "wsd";
         c.optim.warmup = {.share = 0.6, .steps = -1};
         c.optim.decay = {.share = 0.5, .steps = -1};
       }},
      {"layout.targets", [](run_config& c) { c.layout.targets.clear(); }},
      {"layout.drafters", [](run_config& c) { c.layout.drafters.clear(); }},
      {"layout.targets", [](run_config& c) { c.layout.targets = {"gpu:0"}; }},
      {"net.timeout", [](run_config& c) { c.net.timeout = 3.9 * c.net.heartbeat; }},
      {"layout.drafters",
       [](run_config& c) {
         c.layout.drafters = {"cpu:0", "cpu:0"};
       }},
  };
  for (const row& r : rows) {
    run_config c = complete_config();
    r.spoil(c);
    const error e = error_of([&] { validate(c); });
    CAPTURE(e.what());
    CHECK(e.where == r.where);
    CHECK_FALSE(e.what_.empty());
  }
}

TEST_CASE("simulated lanes need sizes and nothing else, and no real lanes beside them") {
  run_config c;
  c.run.dir = "runs/x";
  c.draft.taps = {1, 2};
  c.layout.targets = {"sim:0", "sim:1"};
  c.layout.drafters = {"sim:0"};
  CHECK(is_simulated(c));
  CHECK_FALSE(is_simulated(complete_config()));
  CHECK(error_of([&] { validate(c); }).where == "target.path");
  c.sim.hidden_size = 64;
  c.sim.layers = 4;
  CHECK(error_of([&] { validate(c); }).where == "target.path");
  c.sim.vocab_size = 100;
  CHECK_NOTHROW(validate(c));
  struct row {
    const char* where;
    std::function<void(run_config&)> spoil;
  };
  const row rows[] = {
      {"layout.targets", [](run_config& r) { r.layout.drafters = {"cpu:0"}; }},
      {"layout.drafters", [](run_config& r) { r.layout.targets = {"cpu:0"}; }},
      {"eval.every", [](run_config& r) { r.eval.every = 1; }},
      {"run.resume", [](run_config& r) { r.run.resume = true; }},
      {"data.keep_hidden_states", [](run_config& r) { r.data.keep_hidden_states = 1; }},
      {"data.hidden_states", [](run_config& r) { r.data.hidden_states = "states"; }},
      {"draft.taps", [](run_config& r) { r.draft.taps.clear(); }},
  };
  for (const row& r : rows) {
    run_config spoilt = c;
    r.spoil(spoilt);
    const error e = error_of([&] { validate(spoilt); });
    CAPTURE(e.what());
    CHECK(e.where == r.where);
  }
}

TEST_CASE("mixed terms, D-PACE, cap and a prefix together are valid") {
  run_config c = complete_config();
  c.loss.terms = {{"ce", 1.0}, {"kl", 0.5}, {"tv", 0.1}};
  c.loss.temperature = 2.0;
  c.loss.weighting = "dpace";
  c.loss.dpace_alpha = 0.3;
  c.loss.cap_lambda = 0.1;
  c.loss.prefix = 0.9;
  CHECK_NOTHROW(validate(c));
}

TEST_CASE("sliding layers with a window are valid") {
  run_config c = complete_config();
  c.draft.layers = 2;
  c.draft.layer_types = {"sliding_attention", "full_attention"};
  c.draft.sliding_window = 64;
  CHECK_NOTHROW(validate(c));
}

TEST_CASE("a warm-up must fit into the run, and the error gives both numbers") {
  optim_section optim;
  optim.warmup = {.share = 0.0, .steps = 10};
  CHECK_NOTHROW(check_schedule(optim, 10));
  const error e = error_of([&] { check_schedule(optim, 9); });
  CHECK(e.what_ == "a warm-up of 10 steps does not fit into a run of 9 optimizer steps");
  optim.schedule = "wsd";
  optim.decay = {.share = 0.0, .steps = 1};
  CHECK_NOTHROW(check_schedule(optim, 11));
  CHECK(error_of([&] { check_schedule(optim, 10); }).where == "optim.decay");
}

TEST_CASE("wsd shares that add up to the whole run fit, however they round") {
  optim_section optim;
  optim.schedule = "wsd";
  optim.warmup = {.share = 0.5, .steps = -1};
  optim.decay = {.share = 0.5, .steps = -1};
  for (std::uint64_t total = 1; total < 20; ++total) CHECK_NOTHROW(check_schedule(optim, total));
}

TEST_CASE("shares of a run are rounded to whole steps") {
  CHECK(step_span{.share = 0.04, .steps = -1}.of(10) == 0);
  CHECK(step_span{.share = 0.04, .steps = -1}.of(25) == 1);
  CHECK(step_span{.share = 1.0, .steps = -1}.of(7) == 7);
  CHECK(step_span{.share = 0.5, .steps = 3}.of(100) == 3);
}

}  // namespace dflash

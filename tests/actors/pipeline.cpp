// The whole pipeline on a tiny random target: bits, bytes, resume, kept hidden states, failures.
#include "actors/pipeline.hpp"

#include <ATen/ops/full.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

#include "actors/postprocess.hpp"
#include "config/error.hpp"
#include "tests/actors/training_fixture.hpp"

using namespace dflash;
using namespace dflash::pipeline_test;

TEST_CASE("weights after 20 steps are the same bits for 1, 2 and 3 targets", "[guarantees]") {
  for (const uint32_t drafters : {1U, 2U}) {
    training one({.targets = 1, .drafters = drafters, .accumulation = 2, .noise = 0.05});
    completes(one);
    for (const uint32_t targets : {2U, 3U}) {
      training more({.targets = targets, .drafters = drafters, .accumulation = 2, .noise = 0.05});
      completes(more);
      CHECK(at::equal(one.weights(), more.weights()));
    }
  }
}

TEST_CASE("more drafters than targets, and steps that have nothing for some of them") {
  // 11 rows by 3: the last step of an epoch has two batches.
  training t({.targets = 1, .drafters = 3, .kl = true});
  completes(t);
  CHECK(at::equal(t.weights(0), t.weights(1)));
  CHECK(at::equal(t.weights(0), t.weights(2)));
  training other({.targets = 3, .drafters = 3, .kl = true});
  completes(other);
  CHECK(at::equal(t.weights(), other.weights()));
}

TEST_CASE("the smallest budget still trains, with the same bits", "[guarantees]") {
  training wide({.targets = 2, .drafters = 2});
  completes(wide);
  training narrow({.targets = 2, .drafters = 2, .budget = 4 * wide.parts().shape.bytes()});
  CHECK(narrow.parts().limits.drafter_batches == 1);
  completes(narrow);
  CHECK(at::equal(wide.weights(), narrow.weights()));
}

TEST_CASE("10 steps and 10 resumed ones equal 20, weights and metrics", "[guarantees]") {
  const test::scratch_folder whole, parts;
  training straight({.drafters = 2, .noise = 0.1, .save_every = 10}, whole.path());
  completes(straight);

  training first({.drafters = 2, .noise = 0.1, .save_every = 10}, parts.path());
  first.parts().drafters[1].accumulate =
      [inner = first.parts().drafters[1].accumulate](
          const drafter_input& input, bool measured, const accumulate_watch& watch) {
        if (input.tokens->k >= 29) throw std::runtime_error("a fault after step 14");
        return inner(input, measured, watch);
      };
  first.parts().restart = {2, std::chrono::milliseconds(1), std::chrono::milliseconds(4)};
  const auto failed = first.run();
  CHECK(failed.outcome.status == run_status::failed);
  CHECK(failed.outcome.saved_step == 10);
  CHECK(failed.outcome.reason == "drafter_train 1: a fault after step 14");

  training second({.targets = 2, .drafters = 2, .noise = 0.1, .save_every = 10}, parts.path());
  second.resume();
  completes(second);
  CHECK(at::equal(straight.weights(), second.weights()));
  const auto lines = fixed_lines(parts.path());
  CHECK(lines.size() == 20);
  CHECK(lines == fixed_lines(whole.path()));
}

TEST_CASE("kept hidden states give the bits of recomputation and spare the target") {
  training plain({.noise = 0.1, .kl = true});
  completes(plain);
  const test::scratch_folder folder;
  training kept({.noise = 0.1, .kl = true, .keep_bytes = 1 << 20}, folder.path());
  const auto result = kept.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(at::equal(plain.weights(), kept.weights()));
  CHECK(result.totals.captured >= 11);
  CHECK(result.totals.captured < 20);
  CHECK(result.totals.captured + result.totals.from_disk == 20);

  SECTION("within a budget for some rows only") {
    const test::scratch_folder small;
    training some({.noise = 0.1, .kl = true, .keep_bytes = 5 * kept.parts().shape.bytes()},
                  small.path());
    CHECK(some.run().totals.from_disk > 0);
    CHECK(at::equal(plain.weights(), some.weights()));
  }
}

TEST_CASE("captured hidden states in the place of targets give the bits of an online run") {
  for (const uint32_t drafters : {1U, 2U}) {
    training online({.drafters = drafters, .noise = 0.1, .kl = true});
    completes(online);
    training offline({.targets = 0, .drafters = drafters, .noise = 0.1, .kl = true, .read = true});
    const auto result = offline.run();
    CHECK(result.outcome.status == run_status::completed);
    CHECK(result.totals.captured == 0);
    CHECK(result.totals.from_disk == offline.parts().plan->total_batches());
    CHECK(at::equal(online.weights(), offline.weights()));
    training narrow({.targets = 0,
                     .drafters = drafters,
                     .noise = 0.1,
                     .kl = true,
                     .read = true,
                     .budget = (drafters + 1) * online.parts().shape.bytes()});
    completes(narrow);
    CHECK(at::equal(online.weights(), narrow.weights()));
  }
}

TEST_CASE("captured hidden states that cannot be read end the run with the reason") {
  training t({.targets = 0, .read = true});
  t.parts().read_hidden = [inner = t.parts().read_hidden](const batch& b,
                                                          std::vector<at::Tensor>& into) {
    if (b.k == 9) throw error("row 3 is damaged", "states/hidden_states.bin");
    inner(b, into);
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::failed);
  CHECK_THAT(result.outcome.reason, Catch::Contains("row 3 is damaged"));
}

TEST_CASE("captured hidden states that are not finite are read again, then dropped") {
  training t({.targets = 0, .drafters = 2, .read = true});
  std::atomic<int> reads{0};
  t.parts().read_hidden = [&reads, inner = t.parts().read_hidden](const batch& b,
                                                                  std::vector<at::Tensor>& into) {
    inner(b, into);
    if (b.k != 7) return;
    ++reads;
    into[0].view(-1)[0] = std::nanf("");
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.totals.dropped == 1);
  CHECK(reads == 2);
  CHECK(at::equal(t.weights(0), t.weights(1)));
}

TEST_CASE("a batch that is not finite once is made again and changes nothing", "[guarantees]") {
  training calm({});
  completes(calm);
  training upset({});
  std::atomic<bool> once{true};
  upset.parts().targets[0] = [&, capture = upset.capture()](const batch& b) {
    auto tensors = capture(b);
    if (b.k == 7 && once.exchange(false)) tensors[1].view(-1)[5] = std::nanf("");
    return tensors;
  };
  const auto result = upset.run();
  CHECK(result.totals.dropped == 0);
  CHECK(at::equal(calm.weights(), upset.weights()));
}

TEST_CASE("a batch that is never finite is dropped, the others train on", "[guarantees]") {
  training t({.targets = 2, .drafters = 2});
  for (auto& capture : t.parts().targets)
    capture = [inner = capture](const batch& b) {
      auto tensors = inner(b);
      if (b.k == 7) tensors[0].view(-1)[0] = std::numeric_limits<float>::infinity();
      return tensors;
    };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.totals.dropped == 1);
  CHECK(at::equal(t.weights(0), t.weights(1)));
}

TEST_CASE("a stop finishes the open step, saves and ends in order", "[guarantees]") {
  const test::scratch_folder folder;
  training t({.drafters = 2, .steps = 5000}, folder.path());
  std::function<void()> stop;
  std::atomic<uint64_t> seen{0};
  t.parts().on_started = [&](std::function<void()> s) { stop = std::move(s); };
  t.parts().targets[0] = [&, capture = t.capture()](const batch& b) {
    seen = b.k;
    if (b.k == 40) stop();
    return capture(b);
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::stopped);
  CHECK(result.outcome.steps == result.outcome.saved_step);
  CHECK(result.outcome.steps >= 15);
  CHECK(result.outcome.steps < 60);
  training again({.drafters = 2, .steps = 5000}, folder.path());
  again.resume();
  CHECK(again.parts().first_step == result.outcome.steps);
}

TEST_CASE("a checkpoint that cannot be written leaves training alone until the end",
          "[guarantees]") {
  training t({.steps = 6, .save_every = 2});
  t.parts().drafters[0].snapshot = [](const save_request& r) {
    return [r] {
      if (r.steps < 6) throw std::runtime_error("disk full");
    };
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.saved_step == 6);
  CHECK(result.outcome.saves.failed == 2);
  CHECK(result.outcome.saves.written == 1);
  training last({.steps = 6});
  last.parts().drafters[0].snapshot = [](const save_request&) {
    return [] { throw std::runtime_error("disk full"); };
  };
  const auto failed = last.run();
  CHECK(failed.outcome.status == run_status::failed);
  CHECK_THAT(failed.outcome.reason, Catch::Contains("disk full"));
}

TEST_CASE("noise depends on seed and batch alone, and stays within its bounds") {
  std::vector<at::Tensor> a = {at::full({6, 3}, 1.0F), at::full({6, 3}, 1.0F)};
  std::vector<at::Tensor> b = {a[0].clone(), a[1].clone()};
  add_noise(a, 0.5, 1, 9);
  add_noise(b, 0.5, 1, 9);
  CHECK(at::equal(a[0], b[0]));
  CHECK(at::equal(a[1], b[1]));
  CHECK_FALSE(at::equal(a[0], a[1]));
  CHECK(a[0].min().item<float>() >= 0.5F);
  CHECK(a[0].max().item<float>() <= 1.5F);
  std::vector<at::Tensor> c = {at::full({6, 3}, 1.0F)};
  add_noise(c, 0.5, 1, 10);
  CHECK_FALSE(at::equal(a[0], c[0]));
}

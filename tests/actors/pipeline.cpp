// The whole pipeline on a tiny random target: bits, bytes, resume, kept hidden states, failures.
#include "actors/pipeline.hpp"

#include <ATen/ops/equal.h>
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
#include "model/checkpoint.hpp"
#include "tests/model/decode_fixture.hpp"

using namespace dflash;
namespace fs = std::filesystem;

namespace {

constexpr int64_t row_tokens = 24, anchors = 4, documents = 11;

token_documents text() {
  token_documents all;
  for (int64_t d = 0; d < documents; ++d) {
    const auto ids = decode_test::tiny_prompt(13 + d % 4, d);
    std::vector<uint8_t> mask(ids.size(), 1);
    std::fill(mask.begin(), mask.begin() + 4, 0);
    all.append(ids, mask);
  }
  return all;
}

// 20 steps over a few epochs by default.
struct layout {
  uint32_t targets = 1, drafters = 1;
  uint64_t steps = 20;
  int64_t accumulation = 1;
  double noise = 0;
  bool kl = false;
  uint64_t keep_bytes = 0;
  uint64_t budget = 0;
  uint64_t save_every = 0;
};

class training {
public:
  explicit training(layout l, fs::path folder = {}) : layout_(l), folder_(std::move(folder)) {
    static const auto shared = decode_test::tiny_target();
    model_ = shared;
    config_ = decode_test::tiny_drafter_config(4);
    parts_.source = std::make_shared<const batch_source>(token_set(text()), row_tokens, anchors, 3);
    parts_.plan.emplace(parts_.source->rows(), 1, l.drafters, l.accumulation, l.steps);
    parts_.shape = {row_tokens, 32, 2, l.kl, at::kFloat};
    parts_.limits = derive_limits(
        l.targets, l.keep_bytes > 0 ? 1 : 0, l.drafters, parts_.shape.bytes(), l.budget);
    parts_.noise = l.noise;
    parts_.seed = 3;
    parts_.block_size = 4;
    parts_.metrics_every = 2;
    parts_.progress = false;
    parts_.with_kl = l.kl;
    parts_.save_every = l.save_every;
    if (!folder_.empty()) parts_.metrics_file = folder_ / "metrics.jsonl";
    if (l.keep_bytes > 0)
      parts_.store = std::make_shared<hidden_store>(
          folder_ / "kept", parts_.shape.bytes(), parts_.source->rows(), l.keep_bytes, "x");
    loss_section loss;
    if (l.kl) loss.terms = {{"ce", 0.5}, {"kl", 0.5}};
    optim_section optim;
    optim.accumulation = l.accumulation;
    for (uint32_t i = 0; i < l.drafters; ++i)
      trainers_.push_back(std::make_shared<drafter_trainer>(config_,
                                                            loss,
                                                            optim,
                                                            decode_test::tiny_drafter(config_),
                                                            model_,
                                                            compute_dtype::fp32,
                                                            parts_.plan->total_steps()));
    for (uint32_t i = 0; i < l.targets; ++i) parts_.targets.push_back(capture());
    for (const auto& trainer : trainers_) parts_.drafters.push_back(work_of(trainer));
    parts_.drafters[0].save = [this](const save_request& r) { save(r, *trainers_[0]); };
  }

  capture_function capture() {
    return [this](const batch& b) {
      auto c = model_->capture(b.input_ids, b.doc_offsets, config_.taps, layout_.kl);
      if (layout_.kl) c.taps.push_back(c.last_hidden);
      return c.taps;
    };
  }

  void resume() {
    const checkpoint_scan scan = find_checkpoint(folder_ / "checkpoints");
    REQUIRE(scan.newest);
    for (auto& trainer : trainers_) load_checkpoint(*scan.newest, scan.state, *trainer);
    parts_.first_step = parts_.saved_step = scan.state.steps;
    truncate_after(parts_.metrics_file, scan.state.steps);
  }

  pipeline_result run() {
    pipeline_system_config config(false);
    caf::actor_system system(config);
    auto result = run_pipeline(system, parts_);
    uint64_t peak = 0;
    for (const mailbox_report& m : result.mailboxes) {
      INFO(m.actor);
      CHECK(m.refused == 0);
      if (m.limit_bytes > 0) CHECK(m.peak_bytes <= m.limit_bytes);
      // What a stopped run had in flight is thrown away with it.
      if (result.outcome.status == run_status::completed) CHECK(m.bytes == 0);
      peak += m.peak_bytes;
    }
    CHECK(peak <= parts_.limits.total_bytes());
    return result;
  }

  pipeline_parts& parts() { return parts_; }
  const at::Tensor& weights(size_t drafter = 0) const {
    return trainers_.at(drafter)->flat_masters();
  }

private:
  void save(const save_request& r, drafter_trainer& t) {
    if (folder_.empty()) return;
    checkpoint_state state;
    state.steps = r.steps;
    state.next_k = r.next_k;
    state.total_steps = parts_.plan->total_steps();
    save_checkpoint(folder_ / "checkpoints", state, t, {"", at::kFloat, {}, 2});
  }

  layout layout_;
  fs::path folder_;
  std::shared_ptr<const target> model_;
  drafter_config config_;
  std::vector<std::shared_ptr<drafter_trainer>> trainers_;
  pipeline_parts parts_;
};

void completes(training& t) {
  const auto result = t.run();
  INFO(result.outcome.reason);
  REQUIRE(result.outcome.status == run_status::completed);
  CHECK(result.outcome.steps == t.parts().plan->total_steps());
}

// metrics.jsonl without times.
std::vector<std::string> fixed_lines(const fs::path& folder) {
  std::ifstream in(folder / "metrics.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    lines.push_back(line.substr(0, line.find("\"time\"")));
  return lines;
}

}  // namespace

TEST_CASE("weights after 20 steps are the same bits for 1, 2 and 3 targets") {
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

TEST_CASE("the smallest budget still trains, with the same bits") {
  training wide({.targets = 2, .drafters = 2});
  completes(wide);
  training narrow({.targets = 2, .drafters = 2, .budget = 4 * wide.parts().shape.bytes()});
  CHECK(narrow.parts().limits.drafter_batches == 1);
  completes(narrow);
  CHECK(at::equal(wide.weights(), narrow.weights()));
}

TEST_CASE("10 steps and 10 resumed ones equal 20, weights and metrics") {
  const test::scratch_folder whole, parts;
  training straight({.drafters = 2, .noise = 0.1, .save_every = 10}, whole.path());
  completes(straight);

  training first({.drafters = 2, .noise = 0.1, .save_every = 10}, parts.path());
  std::atomic<int> captures{0};
  first.parts().targets[0] = [&, capture = first.capture()](const batch& b) {
    if (++captures == 36)  // at most six batches ahead of the training
      throw std::runtime_error("a fault after step 14");
    return capture(b);
  };
  const auto failed = first.run();
  CHECK(failed.outcome.status == run_status::failed);
  CHECK(failed.outcome.saved_step == 10);
  CHECK(failed.outcome.reason == "target_forward 0: a fault after step 14");

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

TEST_CASE("a batch that is not finite once is made again and changes nothing") {
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

TEST_CASE("a batch that is never finite is dropped, the others train on") {
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

TEST_CASE("a stop finishes the open step, saves and ends in order") {
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

TEST_CASE("a checkpoint that cannot be written leaves training alone until the end") {
  training t({.steps = 6, .save_every = 2});
  t.parts().drafters[0].save = [](const save_request& r) {
    if (r.steps < 6) throw std::runtime_error("disk full");
  };
  const auto result = t.run();
  CHECK(result.outcome.status == run_status::completed);
  CHECK(result.outcome.saved_step == 6);
  training last({.steps = 6});
  last.parts().drafters[0].save = [](const save_request&) {
    throw std::runtime_error("disk full");
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

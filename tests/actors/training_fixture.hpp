// The whole pipeline on a tiny random target, ready to run, with the checks that hold for every
// run.
#pragma once

#include <ATen/ops/equal.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/pipeline.hpp"
#include "model/checkpoint.hpp"
#include "model/checkpoint_retention.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash::pipeline_test {

inline constexpr int64_t row_tokens = 24, anchors = 4, documents = 11;

inline token_documents text() {
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
  double ema = 0;
  double noise = 0;
  bool kl = false;
  bool read = false;  // captured states instead of targets
  uint64_t keep_bytes = 0;
  uint64_t budget = 0;
  uint64_t save_every = 0;
  // Of each lane; beyond their ends the CPU.
  std::vector<at::Device> target_devices = {}, drafter_devices = {};
};

class training {
public:
  explicit training(layout l, std::filesystem::path folder = {})
      : layout_(l), folder_(std::move(folder)) {
    const auto model_of = [](const std::vector<at::Device>& devices, uint32_t lane) {
      return model_on(lane < devices.size() ? devices[lane] : at::Device(at::kCPU));
    };
    parts_.target_devices = l.target_devices;
    parts_.drafter_devices = l.drafter_devices;
    config_ = decode_test::tiny_drafter_config(4);
    parts_.source = std::make_shared<const batch_source>(token_set(text()), row_tokens, anchors, 3);
    parts_.plan.emplace(parts_.source->rows(), 1, l.drafters, l.accumulation, l.steps);
    parts_.shape = {row_tokens, 32, 2, l.kl, at::kFloat};
    parts_.limits = derive_limits(
        l.targets, l.keep_bytes > 0 || l.read ? 1 : 0, l.drafters, parts_.shape.bytes(), l.budget);
    parts_.noise = l.noise;
    parts_.seed = 3;
    parts_.block_size = 4;
    parts_.metrics_every = 2;
    parts_.progress = false;
    if (l.kl) parts_.terms.of(kernel::loss_term::kl) = 0.5;
    parts_.saves.every = l.save_every;
    if (!folder_.empty()) parts_.metrics_file = folder_ / "metrics.jsonl";
    if (l.keep_bytes > 0)
      parts_.store = std::make_shared<hidden_store>(
          folder_ / "kept", parts_.shape.bytes(), parts_.source->rows(), l.keep_bytes, "x");
    loss_section loss;
    if (l.kl) loss.terms = {{"ce", 0.5}, {"kl", 0.5}};
    optim_section optim;
    optim.accumulation = l.accumulation;
    optim.ema = l.ema;
    for (uint32_t i = 0; i < l.drafters; ++i)
      trainers_.push_back(std::make_shared<drafter_trainer>(config_,
                                                            loss,
                                                            optim,
                                                            decode_test::tiny_drafter(config_),
                                                            model_of(l.drafter_devices, i),
                                                            compute_dtype::fp32,
                                                            parts_.plan->total_steps()));
    for (uint32_t i = 0; i < l.targets; ++i)
      parts_.targets.push_back(capture(model_of(l.target_devices, i)));
    if (l.read)
      parts_.read_hidden = [make = capture()](const batch& b, std::vector<at::Tensor>& into) {
        into = make(b);
      };
    for (const auto& trainer : trainers_)
      parts_.drafters.push_back(
          work_of(trainer, [this](drafter_trainer& t) { return restore(t); }));
    parts_.drafters[0] = work_of(
        trainers_[0],
        [this](drafter_trainer& t) { return restore(t); },
        [this](const save_request& r, const trainer_snapshot& copy) { save(r, copy); });
  }

  static std::shared_ptr<const target> model_on(at::Device device) {
    static std::map<std::string, std::shared_ptr<const target>> shared;
    auto& model = shared[device.str()];
    if (!model)
      model = decode_test::tiny_target(compute_dtype::fp32, -1, decode_test::tiny_vocab, device);
    return model;
  }

  capture_function capture(std::shared_ptr<const target> model = model_on(at::kCPU)) {
    return [this, model = std::move(model)](const batch& b) {
      auto c = model->capture(b.input_ids, b.doc_offsets, config_.taps, layout_.kl);
      if (layout_.kl) c.taps.push_back(c.last_hidden);
      return c.taps;
    };
  }

  void resume() {
    const checkpoint_scan scan = find_checkpoint(folder_ / "checkpoints");
    REQUIRE(scan.newest);
    for (auto& trainer : trainers_) load_checkpoint(*scan.newest, scan.state, *trainer);
    parts_.first_step = parts_.saved_step = scan.state.steps;
    parts_.skipped_steps = scan.state.skipped_steps;
    parts_.losses = scan.state.losses;
    truncate_after(parts_.metrics_file, scan.state.steps);
  }

  // `before_the_system_ends`: may be empty; lets go what holds a thread up.
  pipeline_result run(const std::function<void()>& before_the_system_ends = {}) {
    pipeline_system_config config(false);
    caf::actor_system system(config);
    auto result = run_pipeline(system, parts_);
    if (before_the_system_ends) before_the_system_ends();
    uint64_t peak = 0;
    for (const mailbox_report& m : result.mailboxes) {
      INFO(m.actor);
      CHECK(m.refused == 0);
      if (m.limit_bytes > 0) CHECK(m.peak_bytes <= m.limit_bytes);
      // What a stopped run had in flight is thrown away with it.
      if (result.outcome.status == run_status::completed && !result.outcome.stopped_early)
        CHECK(m.bytes == 0);
      peak += m.peak_bytes;
    }
    CHECK(peak <= parts_.limits.total_bytes());
    return result;
  }

  pipeline_parts& parts() { return parts_; }
  drafter_trainer& trainer(size_t drafter) { return *trainers_.at(drafter); }
  const at::Tensor& weights(size_t drafter = 0) const {
    return trainers_.at(drafter)->flat_masters();
  }

private:
  uint64_t restore(drafter_trainer& t) {
    const checkpoint_scan scan = find_checkpoint(folder_ / "checkpoints");
    if (!folder_.empty() && scan.newest) {
      load_checkpoint(*scan.newest, scan.state, t);
      t.clear_gradient();
      return scan.state.steps;
    }
    restart_from(decode_test::tiny_drafter(config_), t);
    return 0;
  }

  void save(const save_request& r, const trainer_snapshot& copy) {
    if (folder_.empty()) return;
    checkpoint_state state;
    state.steps = r.steps;
    state.next_k = r.next_k;
    state.total_steps = parts_.plan->total_steps();
    state.skipped_steps = r.skipped_steps;
    state.dropped = r.dropped;
    state.losses = {r.loss_count, r.loss_mean, r.loss_variance};
    write_checkpoint(folder_ / "checkpoints", state, copy, {"", at::kFloat, {}});
    prune_checkpoints(folder_ / "checkpoints", {2, 0, r.kept_steps});
  }

  layout layout_;
  std::filesystem::path folder_;
  drafter_config config_;
  std::vector<std::shared_ptr<drafter_trainer>> trainers_;
  pipeline_parts parts_;
};

inline void completes(training& t) {
  const auto result = t.run();
  INFO(result.outcome.reason);
  REQUIRE(result.outcome.status == run_status::completed);
  CHECK(result.outcome.steps == t.parts().plan->total_steps());
}

// metrics.jsonl without times.
inline std::vector<std::string> fixed_lines(const std::filesystem::path& folder) {
  std::ifstream in(folder / "metrics.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    lines.push_back(line.substr(0, line.find("\"time\"")));
  return lines;
}

}  // namespace dflash::pipeline_test

// What a family's ways mean for the drafter: its shape, and the teacher rows that it learns from.
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "model/drafter_config.hpp"
#include "model/drafter_json.hpp"
#include "model/drafter_step.hpp"
#include "model/export.hpp"
#include "model/folder.hpp"
#include "model/head_loss.hpp"
#include "tests/model/tiny_llama.hpp"

namespace dflash {
namespace {

std::shared_ptr<const target> load(const std::string& name) {
  return target::load(std::filesystem::path(DFLASH_TEST_DATA) / "families" / name,
                      compute_dtype::fp32);
}

draft_section draft() {
  draft_section d;
  d.layers = 2;
  d.block_size = 4;
  d.mask_token_id = 63;
  d.taps = {1, 2};
  return d;
}

// One document of 20 tokens with two blocks of 4 slots, all supervised.
batch small_batch() {
  batch b;
  b.input_ids = test::random_ids(20, 64, 3);
  b.doc_offsets = {0, 20};
  b.real_docs = 1;
  b.loss_mask.assign(20, 1);
  b.anchors = {3, 11};
  b.anchor_valid = {1, 1};
  return b;
}

}  // namespace

TEST_CASE("a drafter rotates whole heads by the target's base, whatever the target does",
          "[families]") {
  const std::pair<const char*, double> bases[] = {{"llama3", 5e5},
                                                  {"llama_linear_biased", 1e4},
                                                  {"qwen3", 1e6},
                                                  {"gemma3", 1e6},
                                                  {"qwen3_5", 1e5}};
  for (const auto& [name, base] : bases) {
    CAPTURE(name);
    const auto model = load(name);
    const auto c = make_drafter_config(draft(), model->config());
    CHECK(c.rope_theta == base);
    CHECK(c.rms_eps == model->config().rms_eps);
    const auto text = drafter_config_json(drafter_form::zlab, c, at::kFloat);
    for (const char* key : {"mrope", "partial_rotary", "yarn", "factor", "softcapping"})
      CHECK(text.find(key) == std::string::npos);
  }
}

TEST_CASE("a drafter has the target's heads, but for hybrid targets and those with experts",
          "[families]") {
  const auto gemma = make_drafter_config(draft(), load("gemma3")->config());
  CHECK(gemma.head_dim == 16);
  CHECK(gemma.heads == 4);
  CHECK(gemma.intermediate == 48);
  const auto hybrid = make_drafter_config(draft(), load("qwen3_5")->config());
  CHECK(hybrid.heads == 32);
  CHECK(hybrid.kv_heads == 8);
  CHECK(hybrid.head_dim == 128);
  CHECK(hybrid.intermediate == 48);
  auto own = draft();
  own.heads = own.kv_heads = 2;
  own.head_dim = 16;
  CHECK(make_drafter_config(own, load("qwen3_5")->config()).head_dim == 16);
  CHECK(make_drafter_config(draft(), load("qwen3_moe")->config()).intermediate == 3 * 32);
}

TEST_CASE("teacher rows are the target's own logits: its form of norm, its soft-capping",
          "[families]") {
  for (const char* name : {"llama3", "gemma3", "qwen3_5", "qwen3_5_moe"}) {
    CAPTURE(name);
    const auto model = load(name);
    const frozen_parts parts = frozen_parts_of(*model);
    const batch tokens = small_batch();
    const auto last = model->capture(tokens.input_ids, tokens.doc_offsets, {}, true).last_hidden;
    const slot_plan plan = plan_slots(tokens, 4, {.gamma = 4.0});
    std::vector<int64_t> rows(plan.teacher.begin(), plan.teacher.end());
    // A drafter that has the target's normed states has its logits, up to the cap.
    const auto hidden = model->normed(at::index_select(last, 0, at::tensor(rows, at::kLong)));
    loss_terms kl;
    kl.of(kernel::loss_term::ce) = 0;
    kl.of(kernel::loss_term::kl) = 1;
    stage_timer timer;
    const auto loss = [&](double cap) {
      return head_loss(parts.head, parts.final_norm, parts.rms_eps, 4, kl, {}, cap)
          .run(hidden, plan, last, false, false, timer)
          .sums.mean_loss();
    };
    CHECK(loss(0) == Approx(0).margin(1e-5));
    const bool capped = model->config().logit_cap > 0;
    CHECK(capped == (std::string(name) == "gemma3"));
    CHECK((loss(parts.logit_cap) > 1e-3) == capped);
  }
}

TEST_CASE("starting from the target's layers is refused where a drafter's cannot be equal",
          "[families]") {
  const auto at = [](const char* name) {
    return std::filesystem::path(DFLASH_TEST_DATA) / "families" / name;
  };
  const auto start = [&](const char* name) {
    const auto model = load(name);
    auto d = draft();
    d.intermediate_size = 48;
    d.heads = model->config().heads;
    d.kv_heads = model->config().kv_heads;
    d.head_dim = model->config().head_dim;
    const auto c = make_drafter_config(d, model->config());
    return init_drafter(c, "target", *model, 1, 0.5, at(name));
  };
  for (const char* name : {"gemma3", "qwen2", "qwen3_5", "qwen3_moe"})
    CHECK_THROWS_WITH(start(name), Catch::Matchers::Contains("draft.init"));
  // Qwen3's head norms are copied too.
  const auto w = start("qwen3");
  auto folder = model_folder::open(at("qwen3"));
  const auto norm = folder.load("model.layers.3.self_attn.q_norm.weight", {12}, at::kFloat);
  CHECK(w.layers[1].q_norm.equal(norm));
}

}  // namespace dflash

// Draft vocabularies: speculators' choice of tokens, labels, losses and gradients (dump in
// tests/data/speculators), and drafting with them.
#include "model/draft_vocab.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <catch2/catch.hpp>

#include <algorithm>

#include "data/token_counts.hpp"
#include "model/drafter_decode.hpp"
#include "model/drafter_step.hpp"
#include "model/target.hpp"
#include "tests/model/decode_fixture.hpp"
#include "tests/model/exactness.hpp"
#include "tests/model/golden_fixture.hpp"

using namespace dflash;
using namespace dflash::test;

namespace {

const std::string saved = DFLASH_TEST_DATA "/speculators/";

std::vector<int32_t> ints(const golden_file& file, const char* key) {
  const at::Tensor t = file[key].to(at::kInt).contiguous();
  return {t.data_ptr<int32_t>(), t.data_ptr<int32_t>() + t.numel()};
}

// The reduced drafter that speculators saved, on the inputs that it was run on.
struct reduced_case {
  reduced_case() : values("../speculators/expected.safetensors") {
    model = target::load(DFLASH_TEST_DATA "/tiny_llama", compute_dtype::fp32);
    auto stored = read_drafter(saved + "reduced");
    shape = stored.config;
    // The dump leaves sliding layers out: speculators trains them with another window.
    shape.sliding.assign(2, false);
    shape.sliding_window = 0;
    masters = std::move(stored.weights);
    const at::Tensor hidden = values["in.hidden_states"];
    taps = {hidden.narrow(1, 0, 48).contiguous(), hidden.narrow(1, 48, 48).contiguous()};
    tokens.input_ids = ints(values, "in.input_ids");
    for (const int32_t m : ints(values, "in.loss_mask"))
      tokens.loss_mask.push_back(static_cast<uint8_t>(m));
    tokens.doc_offsets = {0, static_cast<int32_t>(tokens.input_ids.size())};
    tokens.anchors = ints(values, "in.anchors");
    tokens.anchor_valid.assign(tokens.anchors.size(), 1);
  }

  // Puts speculators' labels (rows of the draft vocabulary) in place of the data's tokens, which no
  // anchor stands on; every third slot gets a token outside the draft vocabulary instead. Returns
  // how many those are.
  int64_t label() {
    const auto labels = ints(values, "labels"), positions = ints(values, "positions");
    int32_t outside = 0;
    while (std::binary_search(shape.draft_ids.begin(), shape.draft_ids.end(), outside)) ++outside;
    int64_t count = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (i % 4 == 0) continue;
      auto& token = tokens.input_ids[static_cast<size_t>(positions[i])];
      token = shape.draft_ids[static_cast<size_t>(labels[i])];
      if (i % 3 == 0) {
        token = outside;
        ++count;
      }
    }
    return count;
  }

  drafter_trainer trainer(const std::string& term) const {
    loss_section loss;
    loss.terms = {{term, 1.0}};
    loss.gamma = 4.0;
    return drafter_trainer(shape, loss, {}, masters, model, compute_dtype::fp32, 10);
  }
  drafter_input input() const { return {taps, values["in.last_hidden"], &tokens}; }

  golden_file values;
  std::shared_ptr<const target> model;
  drafter_config shape;
  drafter_weights masters;
  std::vector<at::Tensor> taps;
  batch tokens;
};

}  // namespace

TEST_CASE("the most frequent tokens are those that speculators takes", "[exact]") {
  const golden_file values("../speculators/expected.safetensors");
  std::vector<int64_t> counts(80, 0);
  const auto tokens = ints(values, "vocab.tokens"), numbers = ints(values, "vocab.counts");
  for (size_t i = 0; i < tokens.size(); ++i) counts[static_cast<size_t>(tokens[i])] = numbers[i];
  CHECK(most_frequent_tokens(counts, 50) == ints(values, "vocab.ids"));
  // 47 tokens occur at all: three fill up. And some of equal counts, where the lower ids win.
  CHECK(std::count(counts.begin(), counts.end(), 0) == 33);
  CHECK(most_frequent_tokens(std::vector<int64_t>{1, 4, 4, 4, 9}, 3) ==
        std::vector<int32_t>{1, 2, 4});
  CHECK(most_frequent_tokens(std::vector<int64_t>{0, 0, 0, 7}, 3) == std::vector<int32_t>{0, 1, 3});
}

TEST_CASE("only supervised tokens are counted") {
  token_documents documents;
  documents.append(std::vector<int32_t>{1, 2, 2, 3}, std::vector<uint8_t>{0, 1, 1, 1});
  documents.append(std::vector<int32_t>{3, 1}, std::vector<uint8_t>{1, 0});
  CHECK(supervised_counts(documents, 5) == std::vector<int64_t>{0, 0, 2, 2, 0});
}

TEST_CASE("offsets, flags and rows of a draft vocabulary") {
  const std::vector<int32_t> ids{1, 2, 5};
  CHECK(d2t_of(ids) == std::vector<int64_t>{1, 1, 3});
  CHECK(t2d_of(ids, 6) == std::vector<uint8_t>{0, 1, 1, 0, 0, 1});
  CHECK(draft_ids(d2t_of(ids), t2d_of(ids, 6), "x") == ids);
  CHECK(draft_rows(ids, 6) == std::vector<int32_t>{-1, 0, 1, -1, -1, 2});
}

// Bounds as in golden.cpp: fp32 sums in another order.
TEST_CASE("losses over a draft vocabulary equal speculators', labels outside it too", "[exact]") {
  for (const auto& [term, key] : {std::pair{"ce", "ce"}, std::pair{"kl", "kl_div"}}) {
    CAPTURE(term);
    reduced_case r;
    CHECK(r.label() == 4);
    drafter_trainer t = r.trainer(term);
    auto values = t.inspect(r.input());
    const double logits = difference(values.at("logits"), golden_case::slots(r.values["logits"]));
    CHECK(logits < 2e-5);
    const step_sums sums = t.accumulate(r.input());
    CHECK(sums.supervised == 12);
    // speculators divides by the number of supervised slots + 1e-5.
    const double count = static_cast<double>(sums.supervised) + 1e-5;
    const double loss = r.values.scalar(std::string(key) + ".loss");
    const double error = std::abs(sums.loss / count - loss) / loss;
    CHECK(error < 1e-5);
    double largest = 0;
    int compared = 0;
    const drafter_weights gradient = view_drafter_weights(r.shape, t.gradient() / count);
    for (const auto& [name, tensor] : named_tensors(gradient)) {
      const std::string stored = std::string(key) + ".grad." + name;
      if (!r.values.has(stored)) continue;
      CAPTURE(name);
      largest = std::max(largest, difference(*tensor, r.values[stored]));
      ++compared;
    }
    CHECK(compared == 4);
    CHECK(largest < 5e-5);
    exactness_row(
        std::string("draft vocabulary, ") + term + " logits", "speculators 0.9", logits, 2e-5);
    exactness_row(
        std::string("draft vocabulary, ") + term + " loss", "speculators 0.9", error, 1e-5);
    exactness_row(
        std::string("draft vocabulary, ") + term + " gradients", "speculators 0.9", largest, 5e-5);
  }
}

TEST_CASE("a token outside the draft vocabulary is never a hit, a token in it may be") {
  reduced_case r;
  const int64_t outside = r.label();
  drafter_trainer t = r.trainer("ce");
  const auto logits = t.inspect(r.input()).at("logits");
  // What the drafter says becomes the data where the draft vocabulary has it.
  const at::Tensor best = logits.argmax(1);
  const auto positions = ints(r.values, "positions");
  for (int64_t i = 0; i < best.numel(); ++i) {
    const auto slot = static_cast<size_t>(i / 3 * 4 + 1 + i % 3);
    auto& token = r.tokens.input_ids[static_cast<size_t>(positions[slot])];
    if (slot % 3 != 0) token = r.shape.draft_ids[static_cast<size_t>(best[i].item().toInt())];
  }
  const step_sums sums = t.evaluate(r.input());
  CHECK(sums.supervised == 12);
  CHECK(sums.hits == 12 - outside);
  CHECK(sums.top8 == 12 - outside);
}

TEST_CASE("a drafter that speculators saved trains on: steps lower the loss", "[drafter]") {
  reduced_case r;
  r.label();
  loss_section loss;
  loss.gamma = 4.0;
  optim_section optim;
  optim.lr = 1e-2;
  optim.warmup = {.share = -1, .steps = 0};
  optim.schedule = "constant";
  drafter_trainer t(r.shape, loss, optim, r.masters, r.model, compute_dtype::fp32, 10);
  const double before = t.evaluate(r.input()).mean_loss();
  for (uint64_t step = 0; step < 12; ++step) {
    const step_sums sums = t.accumulate(r.input());
    CHECK_FALSE(t.apply(t.gradient(), sums.weight_sum, step).skipped);
  }
  CHECK(t.evaluate(r.input()).mean_loss() < 0.5 * before);
}

TEST_CASE("drafts are target ids of the draft vocabulary, the best of its rows") {
  const auto model = decode_test::tiny_target();
  auto config = decode_test::tiny_drafter_config(4);
  const auto weights = decode_test::tiny_drafter(config);
  config.draft_ids = {0, 4, 7, 11, 12, 30, 44, 59};
  const auto prompt = decode_test::tiny_prompt(20);
  const auto captured =
      model->capture(prompt, std::vector<int32_t>{0, 20}, std::vector<int>{1, 2}, false);
  drafter_proposer drafts(std::make_shared<const draft_model>(config, weights, model));
  drafts.start(1, 40);
  const committed_rows rows{.slot = 0, .start = 0, .tokens = std::span(prompt).first(20)};
  drafts.commit({&rows, 1}, captured.taps);
  const draft_request request{.slot = 0, .position = 20, .token = 9, .count = 3};
  const auto proposed = drafts.propose({&request, 1}).front();
  const at::Tensor logits = model->head()(drafts.block_hidden({&request, 1}));
  REQUIRE(proposed.size() == 3);
  for (int64_t k = 1; k <= 3; ++k) {
    int32_t best = config.draft_ids.front();
    for (const int32_t id : config.draft_ids)
      if ((logits[k][id] > logits[k][best]).item().toBool()) best = id;
    CHECK(proposed[static_cast<size_t>(k - 1)] == best);
  }
}

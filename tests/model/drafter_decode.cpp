#include "model/drafter_decode.hpp"

#include <catch2/catch.hpp>
#include <memory>

#include "config/error.hpp"
#include "data/batches.hpp"
#include "model/drafter_step.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

using namespace decode_test;

// One document with blocks that overlap, begin early, and run past its end.
batch one_document(int64_t tokens, const std::vector<int32_t>& anchors) {
  batch row;
  row.input_ids = tiny_prompt(tokens);
  row.doc_offsets = {0, static_cast<int32_t>(tokens)};
  row.real_docs = 1;
  row.loss_mask.assign(static_cast<size_t>(tokens), 1);
  row.anchors = anchors;
  row.anchor_valid.assign(anchors.size(), 1);
  row.documents = {0};
  return row;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.sub(b).abs().max().item<double>()) / b.abs().max().item<double>();
}

TEST_CASE("decoding computes the logits that training computes", "[drafter_decode]") {
  const auto model = tiny_target();
  auto config = tiny_drafter_config(6, GENERATE(false, true));
  if (GENERATE(false, true)) config.causal = GENERATE(false, true);
  const auto weights = tiny_drafter(config);
  const auto row = one_document(40, {1, 9, 11, 30, 37});
  const auto taps = model->capture(row.input_ids, row.doc_offsets, config.taps, false).taps;

  drafter_trainer trainer{config, {}, {}, weights, model, compute_dtype::fp32, 10};
  auto trained = trainer.inspect({.taps = taps, .last_hidden = {}, .tokens = &row});

  drafter_proposer drafts{std::make_shared<const draft_model>(config, weights, model)};
  drafts.start(3, 64);
  std::vector<draft_request> requests;
  for (const int32_t anchor : row.anchors)
    requests.push_back({.slot = 1,
                        .position = anchor,
                        .token = row.input_ids[static_cast<size_t>(anchor)],
                        .count = config.block_size - 1});
  const auto check = [&] {
    const auto hidden = drafts.block_hidden(requests)
                            .view({static_cast<int64_t>(requests.size()), config.block_size, -1})
                            .narrow(1, 1, config.block_size - 1)
                            .reshape({-1, config.hidden});
    CHECK(difference(hidden, trained.at("hidden")) < 1e-5);
    CHECK(difference(model->head()(hidden), trained.at("logits")) < 1e-5);
  };
  SECTION("context committed at once") {
    const committed_rows all{.slot = 1, .start = 0, .tokens = row.input_ids};
    drafts.commit({&all, 1}, taps);
    check();
  }
  SECTION("context committed in pieces, beside another sequence") {
    const std::span<const int32_t> ids{row.input_ids};
    const auto piece = [&](int64_t first, int64_t count) {
      const std::vector<committed_rows> rows{
          {.slot = 0,
           .start = first,
           .tokens = ids.subspan(static_cast<size_t>(first), static_cast<size_t>(count))},
          {.slot = 1,
           .start = first,
           .tokens = ids.subspan(static_cast<size_t>(first), static_cast<size_t>(count))}};
      std::vector<at::Tensor> part;
      for (const auto& tap : taps) part.push_back(tap.narrow(0, first, count).repeat({2, 1}));
      drafts.commit(rows, part);
    };
    piece(0, 17);
    piece(17, 1);
    piece(18, 22);
    check();
  }
}

TEST_CASE("drafts are the argmax of the block's own slots", "[drafter_decode]") {
  const auto model = tiny_target();
  const auto config = tiny_drafter_config(4);
  drafter_proposer drafts{std::make_shared<const draft_model>(config, tiny_drafter(config), model)};
  drafts.start(1, 32);
  const auto ids = tiny_prompt(12);
  const std::vector<int32_t> offsets{0, 12};
  const committed_rows all{.slot = 0, .start = 0, .tokens = ids};
  drafts.commit({&all, 1}, model->capture(ids, offsets, config.taps, false).taps);
  const draft_request request{.slot = 0, .position = 12, .token = 5, .count = 2};
  const auto tokens = drafts.propose({&request, 1}).front();
  REQUIRE(tokens.size() == 2);
  const auto best = model->head()(drafts.block_hidden({&request, 1})).argmax(1);
  for (int64_t k = 1; k <= 2; ++k)
    CHECK(tokens[static_cast<size_t>(k - 1)] == best.select(0, k).item<int64_t>());
}

TEST_CASE("a drafter of another target is refused", "[drafter_decode]") {
  const auto model = tiny_target();
  const auto refused = [&](auto change) {
    auto config = tiny_drafter_config(4);
    const auto weights = tiny_drafter(config);
    change(config);
    CHECK_THROWS_AS((draft_model{config, weights, model}), error);
  };
  refused([](drafter_config& c) { c.vocab += 1; });
  refused([](drafter_config& c) { c.num_target_layers = 5; });
  refused([](drafter_config& c) { c.taps = {1, 4}; });
  refused([](drafter_config& c) { c.mask_token_id = tiny_vocab; });
  refused([](drafter_config& c) { c.target_hidden = 40; });
}

}  // namespace
}  // namespace dflash

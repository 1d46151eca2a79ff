#include "model/eval.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "model/drafter_decode.hpp"
#include "model/lookup.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

using decode_test::tiny_prompt;

token_documents tiny_prompts() {
  token_documents prompts;
  for (int64_t i = 0; i < 7; ++i) prompts.append(tiny_prompt(3 + 19 * i, i), {});
  return prompts;
}

// The walk of stored answers and decoding itself count the same.
void check_walk_equals_decoding(const target& model,
                                proposer& drafts,
                                int64_t new_tokens,
                                double temperature = 0) {
  const auto prompts = tiny_prompts();
  decode_options options;
  options.max_new_tokens = new_tokens;
  options.sampling.temperature = temperature;
  const auto items = make_walk_items(model, prompts, 0, prompts.size(), drafts.taps(), options);
  int64_t traced_passes = 0, traced_tokens = 0, traced_lead = 0;
  const auto walked =
      walk_answers(drafts, items, [&](const walk_item& item, const walk_trace& trace) {
        traced_passes += static_cast<int64_t>(trace.passes.size());
        int64_t at = 0;
        for (const auto& pass : trace.passes) {
          CHECK(pass.at == at);
          CHECK(pass.accepted == std::min(pass.offered, trace.lead[static_cast<size_t>(at)]));
          at += pass.committed;
        }
        traced_tokens += at;
        const auto answered = static_cast<int64_t>(item.tokens.size()) - item.prompt_tokens;
        CHECK(static_cast<int64_t>(trace.lead.size()) == std::max<int64_t>(0, answered - 1));
        for (const int64_t lead : trace.lead) traced_lead += lead + 1;
      });
  CHECK(traced_passes == walked.walk.passes);
  CHECK(traced_tokens == walked.walk.committed);
  CHECK(traced_lead == walked.anchor_length);
  std::vector<std::span<const int32_t>> views;
  for (int64_t i = 0; i < prompts.size(); ++i) views.push_back(prompts.ids(i));
  decode_stats sum;
  int64_t answer_tokens = 0;
  for (const auto& answer : decode_prompts(model, views, &drafts, options)) {
    sum.add(answer.stats);
    answer_tokens += static_cast<int64_t>(answer.tokens.size());
  }
  CHECK(walked.prompts == prompts.size());
  CHECK(walked.answer_tokens == answer_tokens);
  CHECK(walked.walk.passes == sum.passes);
  CHECK(walked.walk.committed == sum.committed);
  CHECK(walked.walk.drafted == sum.drafted);
  CHECK(walked.walk.offered_at == sum.offered_at);
  CHECK(walked.walk.accepted_at == sum.accepted_at);
  CHECK(walked.tau() == Approx(sum.tau()));
}

TEST_CASE("walking answers counts what decoding them counts", "[eval]") {
  // With an end-of-text id that turns up in answers, and prompts close to the position limit.
  const int64_t eos = GENERATE(-1, 4);
  const auto model = decode_test::tiny_target(compute_dtype::fp32, eos);
  SECTION("prompt lookup") {
    lookup_proposer lookup;
    check_walk_equals_decoding(*model, lookup, 40);
    check_walk_equals_decoding(*model, lookup, 40, 0.8);
  }
  SECTION("a drafter") {
    const auto config = decode_test::tiny_drafter_config(6, true);
    drafter_proposer drafts{
        std::make_shared<const draft_model>(config, decode_test::tiny_drafter(config), model)};
    check_walk_equals_decoding(*model, drafts, 40);
    check_walk_equals_decoding(*model, drafts, 40, 0.8);
  }
  SECTION("a drafter that is right three times in four") {
    const auto prompts = tiny_prompts();
    const auto items = make_walk_items(*model, prompts, 0, prompts.size(), {}, {});
    std::vector<std::vector<int32_t>> texts;
    for (const auto& item : items) texts.push_back(item.tokens);
    decode_test::scripted_proposer drafts{texts, 5, 4};
    check_walk_equals_decoding(*model, drafts, 40);
  }
}

TEST_CASE("accept_len takes every position of an answer as anchor", "[eval]") {
  // Answer 10 11 12 13 14; drafts right but for position 12 of the text (id 12, spoilt).
  walk_item item{.tokens = {1, 2, 10, 11, 12, 13, 14}, .prompt_tokens = 2, .limit = 40, .taps = {}};
  decode_test::scripted_proposer drafts{{item.tokens}, 3, 4};  // spoils index 4 of the text
  const auto report = walk_answers(drafts, {&item, 1});
  // Anchors 10, 11, 12, 13 have 1, 0, 2, 1 leading matches.
  CHECK(report.anchors == 4);
  CHECK(report.anchor_length == 4 + 4);
  CHECK(report.accept_len() == 2.0);
  // Passes: 10 → 11 12, 12 → 13 14.
  CHECK(report.walk.passes == 2);
  CHECK(report.walk.committed == 4);
  CHECK(report.tau() == 2.0);
  CHECK(report.supervised_at == std::vector<int64_t>{4, 3, 2});
  CHECK(report.hits_at == std::vector<int64_t>{3, 2, 2});
}

TEST_CASE("an answer of one token gives no pass and no anchor", "[eval]") {
  walk_item item{.tokens = {1, 2, 10}, .prompt_tokens = 2, .limit = 40, .taps = {}};
  lookup_proposer lookup;
  const auto report = walk_answers(lookup, {&item, 1});
  CHECK(report.prompts == 1);
  CHECK(report.anchors == 0);
  CHECK(report.walk.passes == 0);
  CHECK(report.tau() == 0.0);
}

TEST_CASE("reports of parts add up", "[eval]") {
  walk_item item{.tokens = {1, 5, 6, 5, 6, 5, 6, 5}, .prompt_tokens = 2, .limit = 40, .taps = {}};
  lookup_proposer lookup;
  const std::vector<walk_item> both{item, item};
  const auto together = walk_answers(lookup, both);
  auto sum = walk_answers(lookup, {&item, 1});
  sum.add(walk_answers(lookup, {&item, 1}));
  CHECK(sum.anchors == together.anchors);
  CHECK(sum.anchor_length == together.anchor_length);
  CHECK(sum.walk.committed == together.walk.committed);
  CHECK(sum.hits_at == together.hits_at);
}

}  // namespace
}  // namespace dflash

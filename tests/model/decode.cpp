#include "model/decode.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "model/drafter_decode.hpp"
#include "model/lookup.hpp"
#include "tests/model/decode_fixture.hpp"

namespace dflash {
namespace {

using decode_test::scripted_proposer;
using decode_test::tiny_prompt;
using prompt_list = std::vector<std::vector<int32_t>>;

std::vector<decoded> run(const target& model,
                         const prompt_list& prompts,
                         proposer* drafts,
                         int64_t new_tokens,
                         int64_t slots = 64) {
  const std::vector<std::span<const int32_t>> views{prompts.begin(), prompts.end()};
  decode_options options;
  options.max_new_tokens = new_tokens;
  options.max_slots = slots;
  return decode_prompts(model, views, drafts, options);
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<decoded>& answers) {
  std::vector<std::vector<int32_t>> tokens;
  for (const auto& answer : answers) tokens.push_back(answer.tokens);
  return tokens;
}

nlohmann::json decode_limits() {
  std::ifstream file{std::string{DFLASH_TEST_DATA} + "/cases/29-decode-limits/limits.json"};
  return nlohmann::json::parse(file);
}

TEST_CASE("plain decoding follows the target token by token", "[decode]") {
  const auto model = decode_test::tiny_target();
  const auto prompt = tiny_prompt(9);
  const auto answer = run(*model, {prompt}, nullptr, 12).front();
  REQUIRE(answer.tokens.size() == 12);
  CHECK(answer.stop == stop_reason::token_limit);
  CHECK(answer.stats.passes == 11);
  CHECK(answer.stats.committed == 11);
  auto text = prompt;
  const int32_t offsets_first = 0;
  for (const int32_t token : answer.tokens) {
    const std::vector<int32_t> offsets{offsets_first, static_cast<int32_t>(text.size())};
    const auto out = model->capture(text, offsets, {}, true);
    const auto best =
        model->logits(out.last_hidden.slice(0, text.size() - 1)).argmax(1).item<int64_t>();
    CHECK(token == best);
    text.push_back(token);
  }
}

TEST_CASE("case 29: limits of length, alone and in batches, equal to plain decoding", "[decode]") {
  const auto model = decode_test::tiny_target();
  const auto limits = decode_limits();
  const int64_t most = limits["max_new_tokens"];
  prompt_list prompts;
  std::vector<size_t> room;
  for (const int64_t length : limits["prompt_lengths"]) {
    const auto prompt = tiny_prompt(length);
    if (length > 128) {
      CHECK_THROWS_AS(run(*model, {prompt}, nullptr, most), error);
      continue;
    }
    prompts.push_back(prompt);
    room.push_back(static_cast<size_t>(std::min<int64_t>(most, 128 - length)));
  }
  const auto plain = run(*model, prompts, nullptr, most, 1);
  for (size_t i = 0; i < prompts.size(); ++i) {
    INFO("prompt of " << prompts[i].size());
    CHECK(plain[i].tokens.size() == room[i]);
    if (room[i] == 0) CHECK(plain[i].stop == stop_reason::no_room);
    if (room[i] > 0 && room[i] < 40) CHECK(plain[i].stop == stop_reason::position_limit);
  }
  // 63 sequences at once: the same prompts over and over.
  prompt_list many;
  while (many.size() < 63) many.push_back(prompts[many.size() % prompts.size()]);
  const auto config = decode_test::tiny_drafter_config(limits["block_size"]);
  drafter_proposer drafts{
      std::make_shared<const draft_model>(config, decode_test::tiny_drafter(config), model)};
  lookup_proposer lookup;
  prompt_list texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    texts.push_back(prompts[i]);
    texts.back().insert(texts.back().end(), plain[i].tokens.begin(), plain[i].tokens.end());
  }
  scripted_proposer scripted{texts, 15, 0};
  for (proposer* source : std::initializer_list<proposer*>{nullptr, &drafts, &lookup, &scripted}) {
    for (const int64_t slots : limits["batch"]) {
      INFO("slots " << slots);
      const auto& asked = slots == 63 ? many : prompts;
      const auto answers = run(*model, asked, source, most, slots);
      for (size_t i = 0; i < asked.size(); ++i)
        CHECK(answers[i].tokens == plain[i % prompts.size()].tokens);
    }
  }
}

TEST_CASE("speculative output equals plain output for every block size", "[decode]") {
  const auto model = decode_test::tiny_target();
  const prompt_list prompts{
      tiny_prompt(1), tiny_prompt(7, 1), tiny_prompt(20, 2), tiny_prompt(3, 3)};
  const auto plain = tokens_of(run(*model, prompts, nullptr, 30));
  for (int64_t block = 2; block <= 16; ++block) {
    const auto config = decode_test::tiny_drafter_config(block, block % 3 == 0);
    drafter_proposer drafts{
        std::make_shared<const draft_model>(config, decode_test::tiny_drafter(config), model)};
    for (const int64_t slots : {1, 2, 4}) {
      INFO("block " << block << ", slots " << slots);
      CHECK(tokens_of(run(*model, prompts, &drafts, 30, slots)) == plain);
    }
  }
}

TEST_CASE("passes, committed and accepted counts of a drafter with known mistakes", "[decode]") {
  const auto model = decode_test::tiny_target();
  const prompt_list prompts{tiny_prompt(6)};
  const auto plain = run(*model, prompts, nullptr, 21).front();
  auto text = prompts.front();
  text.insert(text.end(), plain.tokens.begin(), plain.tokens.end());
  SECTION("always right: each pass commits the whole block, the last one is cut") {
    scripted_proposer drafts{{text}, 7, 0};
    const auto answer = run(*model, prompts, &drafts, 21).front();
    CHECK(answer.tokens == plain.tokens);
    // 1 token of the prefill, then 8 + 8 + 4.
    CHECK(answer.stats.passes == 3);
    CHECK(answer.stats.committed == 20);
    CHECK(answer.stats.drafted == 7 + 7 + 3);
    CHECK(answer.stats.offered_at == std::vector<int64_t>{3, 3, 3, 2, 2, 2, 2});
    CHECK(answer.stats.accepted_at == answer.stats.offered_at);
    CHECK(answer.stats.tau() == Approx(20.0 / 3));
  }
  SECTION("wrong at every fourth position") {
    scripted_proposer drafts{{text}, 7, 4};
    const auto answer = run(*model, prompts, &drafts, 21).front();
    CHECK(answer.tokens == plain.tokens);
    // Positions 8, 12, … are drafted wrongly: passes end there, from position 7: 8, 12, 16, 20,
    // 24, 26.
    CHECK(answer.stats.passes == 6);
    CHECK(answer.stats.committed == 20);
  }
  SECTION("never right: one token a pass") {
    scripted_proposer drafts{{text}, 7, 1};
    const auto answer = run(*model, prompts, &drafts, 21).front();
    CHECK(answer.tokens == plain.tokens);
    CHECK(answer.stats.passes == 20);
    CHECK(answer.stats.accepted_at == std::vector<int64_t>(7, 0));
  }
  SECTION("no guess: no draft is counted") {
    scripted_proposer drafts{{}, 7, 0};
    const auto answer = run(*model, prompts, &drafts, 21).front();
    CHECK(answer.tokens == plain.tokens);
    CHECK(answer.stats.drafted == 0);
  }
}

TEST_CASE("end-of-text ends the answer inside a block", "[decode]") {
  const auto any = decode_test::tiny_target();
  const prompt_list prompts{tiny_prompt(11)};
  const auto full = run(*any, prompts, nullptr, 30).front().tokens;
  // The token that first appears at least 4 places into the answer becomes end-of-text.
  size_t place = 4;
  while (std::find(full.begin(), full.begin() + static_cast<std::ptrdiff_t>(place), full[place]) !=
         full.begin() + static_cast<std::ptrdiff_t>(place))
    ++place;
  const auto model = decode_test::tiny_target(compute_dtype::fp32, full[place]);
  const auto plain = run(*model, prompts, nullptr, 30).front();
  CHECK(plain.stop == stop_reason::end_of_text);
  REQUIRE(plain.tokens.size() == place + 1);
  auto text = prompts.front();
  text.insert(text.end(), full.begin(), full.end());
  scripted_proposer drafts{{text}, 15, 0};  // drafts past the end-of-text
  const auto answer = run(*model, prompts, &drafts, 30).front();
  CHECK(answer.tokens == plain.tokens);
  CHECK(answer.stop == stop_reason::end_of_text);
  CHECK(answer.stats.passes == 1);
  CHECK(answer.stats.committed == static_cast<int64_t>(place));
}

TEST_CASE("kept taps are those of one capture over prompt and answer", "[decode]") {
  const auto model = decode_test::tiny_target();
  const prompt_list prompts{tiny_prompt(5), tiny_prompt(17, 1)};
  const std::vector<std::span<const int32_t>> views{prompts.begin(), prompts.end()};
  decode_options options;
  options.max_new_tokens = 8;
  options.keep_taps = {0, 3};
  const auto answers = decode_prompts(*model, views, nullptr, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    auto text = prompts[i];
    text.insert(text.end(), answers[i].tokens.begin(), answers[i].tokens.end() - 1);
    const std::vector<int32_t> offsets{0, static_cast<int32_t>(text.size())};
    const auto captured = model->capture(text, offsets, options.keep_taps, false);
    REQUIRE(answers[i].taps.size() == 2);
    for (size_t j = 0; j < 2; ++j) {
      REQUIRE(answers[i].taps[j].sizes() == captured.taps[j].sizes());
      CHECK(answers[i].taps[j].sub(captured.taps[j]).abs().max().item<float>() < 1e-4F);
    }
  }
}

TEST_CASE("an empty prompt is refused", "[decode]") {
  const auto model = decode_test::tiny_target();
  CHECK_THROWS_AS(run(*model, {{}}, nullptr, 4), error);
}

}  // namespace
}  // namespace dflash

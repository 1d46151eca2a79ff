// Batched generation against one prompt at a time without a cache; groups and restarts.
#include "model/generate.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/error.hpp"
#include "data/files.hpp"
#include "tests/model/tiny_llama.hpp"

namespace dflash {
namespace {

struct fixture {
  test::tiny_shape shape;
  test::scratch_folder scratch;
  std::shared_ptr<const target> model;

  explicit fixture(int64_t max_positions = 512) {
    shape.max_positions = max_positions;
    auto weights = test::random_llama(shape, 11);
    test::round_to_bf16(weights);
    test::write_folder(scratch.path() / "model", shape, weights);
    model = target::load(scratch.path() / "model", compute_dtype::fp32);
  }

  // The whole sequence again for every token.
  std::vector<int32_t> plain(std::vector<int32_t> ids, int64_t room, bool ignore_eos) const {
    std::vector<int32_t> made;
    while (static_cast<int64_t>(made.size()) < room) {
      const std::vector<int32_t> offsets = {0, static_cast<int32_t>(ids.size())};
      const auto hidden = model->capture(ids, offsets, {}, true).last_hidden;
      const auto id =
          argmax_rows(model->logits(hidden.narrow(0, hidden.size(0) - 1, 1)), shape.vocab)[0];
      made.push_back(id);
      ids.push_back(id);
      if (!ignore_eos && id == 2) break;
    }
    return made;
  }

  token_documents prompts(const std::vector<int64_t>& lengths) const {
    token_documents out;
    uint64_t seed = 100;
    for (const auto n : lengths) out.append(test::random_ids(n, shape.vocab, seed++), {});
    return out;
  }
};

std::string bytes_of(const std::filesystem::path& path) {
  return read_file(path);
}

}  // namespace

TEST_CASE("batched answers with refilled slots equal one prompt at a time", "[generate]") {
  const fixture f;
  const auto prompts = f.prompts({5, 1, 40, 12, 3, 70, 8, 8, 21});
  generate_options options;
  options.max_new_tokens = 30;
  options.slots = 3;
  const auto answers = generate_group(*f.model, prompts, 0, prompts.size(), options, {});
  REQUIRE(answers);
  for (int64_t i = 0; i < prompts.size(); ++i) {
    const auto ids = prompts.ids(i);
    CHECK((*answers)[i].ids == f.plain({ids.begin(), ids.end()}, 30, false));
    const bool eos = (*answers)[i].ids.back() == 2;
    CHECK((*answers)[i].end == (eos ? answer_end::eos : answer_end::max_new_tokens));
  }
}

TEST_CASE("prompt and answer together never pass the context", "[generate]") {
  std::ifstream limits(std::string(DFLASH_TEST_DATA) + "/cases/29-decode-limits/expect.json");
  const auto expected = nlohmann::json::parse(limits);
  const fixture f(128);
  generate_options options;
  options.max_new_tokens = 40;
  options.ignore_eos = true;
  for (const auto& row : expected["rows"]) {
    const int64_t length = row["prompt"], most = row["new_tokens_at_most"];
    INFO("prompt of " << length);
    CHECK(room_for(length, 128, 40) == most);
    const auto prompts = f.prompts({length, 5});
    const auto out = f.scratch.path() / "limit.safetensors";
    if (length > 128) {
      CHECK_THROWS_WITH(generate(*f.model, prompts, out, options, {}),
                        Catch::Matchers::Contains("129 tokens"));
      continue;
    }
    const auto answers = generate_group(*f.model, prompts, 0, 2, options, {});
    CHECK(static_cast<int64_t>((*answers)[0].ids.size()) == most);
    if (most == 0) CHECK((*answers)[0].end == answer_end::no_room);
    if (most > 0 && most < 40) CHECK((*answers)[0].end == answer_end::context);
    CHECK((*answers)[1].ids.size() == 40);
  }
}

TEST_CASE("the output holds prompt and answer with a mask on the answer", "[generate]") {
  const fixture f;
  const auto prompts = f.prompts({5, 9, 512});
  generate_options options;
  options.max_new_tokens = 10;
  const auto out = f.scratch.path() / "out.safetensors";
  const auto report = generate(*f.model, prompts, out, options, {});
  CHECK(report.complete);
  CHECK(report.ended[static_cast<int>(answer_end::no_room)] == 1);
  CHECK_FALSE(std::filesystem::exists(work_folder_of(out)));
  const auto shard = read_token_shards({out}, f.shape.vocab);
  REQUIRE(shard.size() == 2);
  for (int64_t i = 0; i < 2; ++i) {
    const auto ids = shard.ids(i), prompt = prompts.ids(i);
    const auto made = f.plain({prompt.begin(), prompt.end()}, 10, false);
    CHECK(std::equal(prompt.begin(), prompt.end(), ids.begin()));
    CHECK(std::vector<int32_t>(ids.begin() + static_cast<int64_t>(prompt.size()), ids.end()) ==
          made);
    for (size_t j = 0; j < ids.size(); ++j) CHECK(shard.mask(i)[j] == (j >= prompt.size()));
  }
}

TEST_CASE("a stopped run goes on from its groups and ends with the same bytes", "[generate]") {
  const fixture f;
  const auto prompts = f.prompts({5, 9, 3, 30, 2, 11, 7});
  generate_options options;
  options.max_new_tokens = 12;
  options.group = 2;
  options.sampling = {.temperature = 0.8, .top_p = 0.95, .seed = 3};
  const auto whole = f.scratch.path() / "whole.safetensors";
  CHECK(generate(*f.model, prompts, whole, options, {}).complete);

  const auto parts = f.scratch.path() / "parts.safetensors";
  int passes = 0;
  const auto stopped = generate(
      *f.model, prompts, parts, options, [&](const generate_progress&) { return ++passes < 30; });
  CHECK_FALSE(stopped.complete);
  CHECK(stopped.groups_done >= 1);
  CHECK_FALSE(std::filesystem::exists(parts));

  auto other = options;
  other.sampling.seed = 4;
  CHECK_THROWS_WITH(generate(*f.model, prompts, parts, other, {}),
                    Catch::Matchers::Contains("other options: seed"));

  options.workers = 3;  // no part of what the answers depend on
  // A damaged group is made again.
  const auto first = work_folder_of(parts) / "group-000000.safetensors";
  REQUIRE(std::filesystem::exists(first));
  std::filesystem::resize_file(first, std::filesystem::file_size(first) - 1);
  const auto resumed = generate(*f.model, prompts, parts, options, {});
  CHECK(resumed.complete);
  CHECK(resumed.groups_resumed == stopped.groups_done - 1);
  CHECK(bytes_of(parts) == bytes_of(whole));
}

TEST_CASE("any number of workers gives the same bytes, and what one throws ends all",
          "[generate]") {
  const fixture f;
  const auto prompts = f.prompts({5, 9, 3, 30, 2, 11, 7, 14, 6});
  generate_options options;
  options.max_new_tokens = 12;
  options.group = 2;
  options.sampling = {.temperature = 0.8, .seed = 3};
  std::string one;
  for (const int64_t workers : {1, 2, 4, 9}) {
    options.workers = workers;
    const auto out = f.scratch.path() / ("out-" + std::to_string(workers) + ".safetensors");
    double share = 0;
    const auto report = generate(*f.model, prompts, out, options, [&](const generate_progress& p) {
      CHECK(p.share >= share);
      share = p.share;
      return true;
    });
    CHECK(report.complete);
    CHECK(report.groups_done == 5);
    if (one.empty()) one = bytes_of(out);
    CHECK(bytes_of(out) == one);
  }
  const auto out = f.scratch.path() / "failed.safetensors";
  CHECK_THROWS_WITH(generate(*f.model,
                             prompts,
                             out,
                             options,
                             [](const generate_progress&) -> bool { throw error("full", "disk"); }),
                    Catch::Matchers::Contains("full"));
  CHECK_FALSE(std::filesystem::exists(out));
  CHECK(generate(*f.model, prompts, out, options, {}).complete);
  CHECK(bytes_of(out) == one);
}

}  // namespace dflash

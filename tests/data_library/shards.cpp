#include "data/shards.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "data/safetensors_header.hpp"
#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

namespace {

const std::filesystem::path shard_folder = DFLASH_TEST_DATA "/shards";
constexpr int64_t vocab = 100;

template <class T>
std::vector<T> vec(std::span<const T> s) {
  return {s.begin(), s.end()};
}

// A right shard of two documents, to be spoilt in one place.
struct shard_parts {
  std::vector<int32_t> ids = {5, 6, 7, 8, 9};
  std::vector<uint8_t> mask = {0, 1, 1, 0, 1};
  std::vector<int64_t> offsets = {0, 3, 5};
};

std::string refusal(const std::function<void(shard_parts&)>& spoil,
                    const std::function<void(std::vector<st_view>&)>& change = {}) {
  const scratch_folder scratch;
  shard_parts p;
  spoil(p);
  const auto length = [](const auto& v) { return std::vector{static_cast<int64_t>(v.size())}; };
  std::vector<st_view> tensors = {
      {"input_ids", st_dtype::i32, length(p.ids), std::as_bytes(std::span(p.ids))},
      {"loss_mask", st_dtype::u8, length(p.mask), std::as_bytes(std::span(p.mask))},
      {"doc_offsets", st_dtype::i64, length(p.offsets), std::as_bytes(std::span(p.offsets))}};
  if (change) change(tensors);
  write_safetensors(scratch / "s.safetensors", tensors);
  return error_of([&] { read_token_shards({scratch / "s.safetensors"}, vocab); });
}

}  // namespace

TEST_CASE("shards made elsewhere are read") {
  const auto one = read_token_shards({shard_folder / "docs_1.safetensors"}, 32);
  CHECK(one.size() == 1);
  CHECK(one.tokens() == 32);
  CHECK(one.supervised() == 24);
  const auto all = read_token_shards(
      {shard_folder / "docs_3.safetensors", shard_folder / "docs_10.safetensors"}, 32);
  CHECK(all.size() == 13);
  CHECK(vec(all.ids(0)).front() == 9);
  CHECK(all.ids(3).size() == 32);
  CHECK_THAT(all.where(4), Contains("docs_10.safetensors, document 1"));
}

TEST_CASE("a written shard is read back") {
  const scratch_folder scratch;
  token_documents documents;
  const std::vector<int32_t> first = {1, 2, 3}, second = {99};
  const std::vector<uint8_t> first_mask = {0, 1, 1}, second_mask = {0};
  documents.append(first, first_mask);
  documents.append(second, second_mask);
  write_token_shard(scratch / "t.safetensors", documents, {{"tool", "test"}});
  token_set set = read_token_shards({scratch / "t.safetensors"}, vocab);
  CHECK(set.size() == 2);
  CHECK(vec(set.ids(0)) == first);
  CHECK(vec(set.mask(0)) == first_mask);
  CHECK(vec(set.ids(1)) == second);
  CHECK(set.supervised() == 2);
  const token_set in_memory = documents;
  CHECK(in_memory.supervised() == 2);
  CHECK(vec(in_memory.mask(0)) == first_mask);
  // The tokens outlive the file's name and every other copy.
  std::filesystem::remove(scratch / "t.safetensors");
  const token_set copy = set;
  set = {};
  CHECK(vec(copy.ids(1)) == second);
}

TEST_CASE("the checksum tells documents apart by tokens, masks and borders, not by files") {
  const auto set_of = [](const std::vector<std::vector<int32_t>>& documents, uint8_t last) {
    token_documents all;
    for (const auto& ids : documents) {
      std::vector<uint8_t> mask(ids.size(), 1);
      mask.back() = last;
      all.append(ids, mask);
    }
    return token_set(all).checksum();
  };
  const uint32_t sum = set_of({{1, 2}, {3}}, 1);
  CHECK(set_of({{1, 2}, {3}}, 1) == sum);
  CHECK(set_of({{1}, {2, 3}}, 1) != sum);
  CHECK(set_of({{1, 2, 3}}, 1) != sum);
  CHECK(set_of({{1, 2}, {4}}, 1) != sum);
  CHECK(set_of({{1, 2}, {3}}, 0) != sum);
  CHECK(set_of({{3}, {1, 2}}, 1) != sum);
}

TEST_CASE("prompt shards have no mask, token shards have one") {
  const scratch_folder scratch;
  token_documents prompts;
  const std::vector<int32_t> ids = {1, 2};
  prompts.append(ids, {});
  prompts.append(ids, {});
  write_token_shard(scratch / "p.safetensors", prompts);
  const auto back = read_prompt_shard(scratch / "p.safetensors", vocab);
  CHECK(back.size() == 2);
  CHECK(vec(back.ids(1)) == ids);
  CHECK(back.mask(0).empty());
  CHECK_THAT(error_of([&] { read_token_shards({scratch / "p.safetensors"}, vocab); }),
             Contains("prompt shard") && Contains("dflash generate"));
  CHECK_THAT(error_of([&] { read_prompt_shard(shard_folder / "docs_1.safetensors", vocab); }),
             Contains("token shard") && Contains("docs_1"));
  CHECK_THAT(error_of([&] { read_prompt_shard(scratch / "p.safetensors", 2); }),
             Contains("token id 2 at token 1 of document 0") && Contains("vocabulary of 2"));
  write_token_shard(scratch / "e.safetensors", {});
  CHECK_THAT(error_of([&] { read_prompt_shard(scratch / "e.safetensors", vocab); }),
             Contains("no document"));
}

TEST_CASE("tensors at any alignment are read") {
  const scratch_folder scratch;
  // Ten mask bytes first, so that ids and offsets lie at odd places.
  const std::string header =
      "{\"loss_mask\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
      "\"input_ids\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[3,15]},"
      "\"doc_offsets\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[15,31]}}";
  const std::vector<int32_t> ids = {7, 8, 9};
  const std::vector<int64_t> offsets = {0, 3};
  std::string data("\0\1\1", 3);
  data.append(reinterpret_cast<const char*>(ids.data()), 12);
  data.append(reinterpret_cast<const char*>(offsets.data()), 16);
  write_bytes(scratch / "m.safetensors", raw_safetensors(header, data));
  const auto set = read_token_shards({scratch / "m.safetensors"}, vocab);
  CHECK(vec(set.ids(0)) == ids);
}

TEST_CASE("bad shards are refused by file, tensor and place") {
  const auto keep = [](shard_parts&) {};
  CHECK(refusal(keep).empty());

  SECTION("tensors missing, spare, or of another type") {
    CHECK_THAT(refusal(keep, [](auto& t) { t.erase(t.begin()); }),
               Contains("\"input_ids\"") && Contains("s.safetensors"));
    CHECK_THAT(refusal(keep, [](auto& t) { t.erase(t.begin() + 1); }), Contains("loss_mask"));
    CHECK_THAT(refusal(keep, [](auto& t) { t.erase(t.begin() + 2); }), Contains("doc_offsets"));
    CHECK_THAT(refusal(keep,
                       [](auto& t) {
                         t.push_back(t[1]);
                         t.back().name = "labels";
                       }),
               Contains("\"labels\""));
    CHECK_THAT(refusal(keep, [](auto& t) { t[0].dtype = st_dtype::f32; }),
               Contains("\"input_ids\" is F32; it must be I32"));
    CHECK_THAT(refusal(keep, [](auto& t) { t[0].dtype = st_dtype::u32; }), Contains("U32"));
    CHECK_THAT(refusal(keep, [](auto& t) { t[1].dtype = st_dtype::boolean; }),
               Contains("\"loss_mask\" is BOOL; it must be U8"));
    CHECK_THAT(refusal(keep, [](auto& t) { t[2].dtype = st_dtype::u64; }),
               Contains("\"doc_offsets\" is U64; it must be I64"));
    CHECK_THAT(refusal(keep,
                       [](auto& t) {
                         t[0].shape = {1, 5};
                       }),
               Contains("[1, 5]") && Contains("vector"));
  }
  SECTION("token ids outside the vocabulary") {
    CHECK_THAT(refusal([](auto& p) { p.ids[4] = 100; }),
               Contains("token id 100 at token 1 of document 1") && Contains("of 100"));
    CHECK_THAT(refusal([](auto& p) { p.ids[2] = -1; }),
               Contains("token id -1 at token 2 of document 0"));
    CHECK(refusal([](auto& p) { p.ids[0] = 99; }).empty());
  }
  SECTION("masks") {
    CHECK_THAT(refusal([](auto& p) { p.mask[3] = 2; }),
               Contains("loss_mask is 2 at token 0 of document 1"));
    CHECK_THAT(refusal([](auto& p) { p.mask.pop_back(); }),
               Contains("loss_mask has 4 entries, input_ids 5"));
    CHECK_THAT(refusal([](auto& p) { p.mask.assign(5, 0); }),
               Contains("none of the 5 tokens is supervised") && Contains("hint"));
  }
  SECTION("offsets") {
    CHECK_THAT(refusal([](auto& p) { p.offsets = {}; }), Contains("no document"));
    CHECK_THAT(refusal([](auto& p) { p.offsets = {0}; }), Contains("no document"));
    CHECK_THAT(refusal([](auto& p) { p.offsets = {1, 3, 5}; }), Contains("begins with 1"));
    CHECK_THAT(refusal([](auto& p) { p.offsets = {0, 3, 3, 5}; }), Contains("document 1 is empty"));
    CHECK_THAT(refusal([](auto& p) { p.offsets = {0, 4, 3, 5}; }), Contains("falls from 4 to 3"));
    CHECK_THAT(refusal([](auto& p) { p.offsets = {0, 3}; }), Contains("ends at 3"));
    CHECK_THAT(refusal([](auto& p) { p.offsets = {0, 3, 6}; }), Contains("ends at token 6"));
    CHECK_THAT(refusal([](auto& p) {
                 p.offsets = {0, std::numeric_limits<int64_t>::max(), 5};
               }),
               Contains("document 0 ends at token 9223372036854775807"));
    CHECK_THAT(refusal([](auto& p) {
                 p.offsets = {0, std::numeric_limits<int64_t>::min(), 5};
               }),
               Contains("falls"));
  }
  SECTION("nothing") {
    CHECK_THAT(refusal([](auto& p) {
                 p.ids.clear();
                 p.mask.clear();
                 p.offsets = {0};
               }),
               Contains("no document"));
    CHECK_THAT(error_of([] { read_token_shards({}, vocab); }), Contains("no token shard"));
    CHECK_THAT(error_of([] { read_token_shards({"/none.safetensors"}, vocab); }),
               Contains("/none.safetensors"));
  }
}

TEST_CASE("one shard may lack supervised tokens if another has some") {
  const scratch_folder scratch;
  token_documents bare;
  const std::vector<int32_t> ids = {1, 2};
  const std::vector<uint8_t> mask = {0, 0};
  bare.append(ids, mask);
  write_token_shard(scratch / "bare.safetensors", bare);
  const auto set =
      read_token_shards({scratch / "bare.safetensors", shard_folder / "docs_1.safetensors"}, vocab);
  CHECK(set.size() == 2);
  CHECK(set.supervised() == 24);
}

TEST_CASE("no cut and no flipped byte of a shard gets past the checks unseen") {
  const scratch_folder scratch;
  const std::string good = read_file(shard_folder / "docs_1.safetensors");
  const auto path = scratch / "x.safetensors";
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, good.data(), 8);
  const auto attempt = [&](std::string_view bytes) {
    write_bytes(path, bytes);
    // Anything but a dflash::error would end this test.
    return error_of([&] {
      const auto set = read_token_shards({path}, 32);
      int64_t sum = 0;
      for (int64_t d = 0; d < set.size(); ++d)
        for (const int32_t id : set.ids(d)) sum += id;
      REQUIRE(sum >= 0);
    });
  };
  for (size_t size = 0; size < good.size(); size += size < 10 ? 1 : 7) {
    INFO("cut to " << size);
    CHECK_FALSE(attempt(good.substr(0, size)).empty());
  }
  CHECK_FALSE(attempt(good + "x").empty());
  for (size_t i = 0; i < good.size(); i += i < 8 ? 1 : 7) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x80);
    INFO("highest bit of byte " << i << " flipped");
    // A header with it is no JSON or not UTF-8, an id or offset negative or huge, a mask above 1.
    const bool low_byte_of_id = i >= 8 + header_bytes && i < 8 + header_bytes + 128 && i % 4 == 0;
    if (!low_byte_of_id) CHECK_FALSE(attempt(bad).empty());
  }
}

TEST_CASE(
    "no header, however spoilt, gets past the checks as something that the data cannot hold") {
  const std::string file = read_file(shard_folder / "docs_1.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  const std::string good = file.substr(8, header_bytes);
  const uint64_t data_bytes = file.size() - 8 - header_bytes;
  int accepted = 0;
  const auto attempt = [&](std::string_view json) {
    // Anything thrown but a dflash::error ends this test.
    error_of([&] {
      const auto header = parse_safetensors_header(json, data_bytes, "x");
      uint64_t sum = 0;
      for (const auto& t : header.tensors) {
        REQUIRE(t.end <= data_bytes);
        sum += t.end - t.begin;
      }
      REQUIRE(sum == data_bytes);
      ++accepted;
    });
  };
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    for (int byte = 0; byte < 256; ++byte) {
      bad[i] = static_cast<char>(byte);
      attempt(bad);
    }
    attempt(good.substr(0, i));
    attempt(good.substr(0, i) + good.substr(i + 1));
    attempt(good.substr(0, i) + good.substr(i, 1) + good.substr(i));
    attempt(good.substr(0, i) + "{\"a\":[" + good.substr(i));
  }
  CHECK(accepted > 0);  // other names and other blanks are as good
}

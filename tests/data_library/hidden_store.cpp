#include "data/hidden_store.hpp"

#include <sys/resource.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

namespace {

constexpr uint64_t record_bytes = 10'000;  // no multiple of a page
constexpr uint64_t plenty = 1'000'000;

std::vector<std::byte> content(int64_t row) {
  std::vector<std::byte> bytes(record_bytes);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 7 + static_cast<size_t>(row) * 31) % 251);
  return bytes;
}

// In three parts, one of them empty, as taps and last hidden rows come.
bool put(hidden_store& store, int64_t row) {
  const auto bytes = content(row);
  const std::span<const std::byte> all(bytes);
  const std::array<std::span<const std::byte>, 3> parts = {
      all.first(3000), all.first(0), all.subspan(3000)};
  return store.put(row, parts);
}

std::optional<std::vector<std::byte>> get(const hidden_store& store, int64_t row) {
  std::vector<std::byte> bytes(record_bytes);
  const std::span<std::byte> all(bytes);
  const std::array<std::span<std::byte>, 2> parts = {all.first(1), all.subspan(1)};
  if (!store.get(row, parts)) return std::nullopt;
  return bytes;
}

void flip_byte(const std::filesystem::path& path, uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto c = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(c);
}

}  // namespace

TEST_CASE("kept rows come back as they were put") {
  const scratch_folder scratch;
  hidden_store store(scratch / "hidden.bin", record_bytes, 5, plenty);
  CHECK(store.capacity() == 5);
  for (const int64_t row : {3, 0, 4}) CHECK(put(store, row));
  CHECK(put(store, 3));  // a second time changes nothing
  for (const int64_t row : {0, 3, 4}) {
    CHECK(store.has(row));
    CHECK(get(store, row) == content(row));
  }
  CHECK_FALSE(store.has(1));
  CHECK_FALSE(get(store, 1).has_value());
  const auto n = store.count();
  CHECK(n.stored == 3);
  CHECK(n.hits == 3);
  CHECK(n.misses == 1);
  store.remove();
  CHECK_FALSE(std::filesystem::exists(scratch / "hidden.bin"));
  CHECK(get(store, 0) == content(0));
}

TEST_CASE("the file stays within the budget, later rows are not kept") {
  const scratch_folder scratch;
  const uint64_t budget = 40'000;  // a head, an index and two records of three pages
  hidden_store store(scratch / "hidden.bin", record_bytes, 100, budget);
  CHECK(store.capacity() == 2);
  CHECK(put(store, 50));
  CHECK(put(store, 7));
  CHECK_FALSE(put(store, 8));
  CHECK(store.count().refused == 1);
  CHECK(get(store, 7) == content(7));
  CHECK(std::filesystem::file_size(scratch / "hidden.bin") <= budget);
  hidden_store none(scratch / "none.bin", record_bytes, 100, 100);
  CHECK(none.capacity() == 0);
  CHECK_FALSE(put(none, 0));
  CHECK_FALSE(get(none, 0).has_value());
}

TEST_CASE("a store is taken over after a crash") {
  const scratch_folder scratch;
  const auto path = scratch / "hidden.bin";
  {
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    for (const int64_t row : {2, 0, 1}) CHECK(put(store, row));
  }
  SECTION("whole") {
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    CHECK(store.count().stored == 3);
    for (const int64_t row : {0, 1, 2}) CHECK(get(store, row) == content(row));
    CHECK(put(store, 3));
    CHECK(get(store, 3) == content(3));
    CHECK(get(store, 2) == content(2));
  }
  SECTION("with a damaged record, which is made again in its place") {
    const auto size = std::filesystem::file_size(path);
    flip_byte(path, 4096 + 4096 + 100);  // first record = row 2
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    CHECK(store.has(2));
    CHECK_FALSE(get(store, 2).has_value());
    CHECK_FALSE(store.has(2));
    CHECK(store.count().damaged == 1);
    CHECK(get(store, 0) == content(0));
    CHECK(put(store, 2));
    CHECK(get(store, 2) == content(2));
    CHECK(std::filesystem::file_size(path) == size);
  }
  SECTION("with a damaged index entry") {
    flip_byte(path, 4096 + 16 + 9);  // checksum in the entry of row 0
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    CHECK_FALSE(store.has(0));
    CHECK(get(store, 1) == content(1));
    CHECK(put(store, 0));
    CHECK(get(store, 0) == content(0));
  }
  SECTION("cut short") {
    std::filesystem::resize_file(path, 4096 + 4096 + 3 * 4096 + 10);
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    CHECK(get(store, 2) == content(2));
    CHECK_FALSE(get(store, 0).has_value());
    CHECK(put(store, 0));
    CHECK(get(store, 0) == content(0));
  }
  SECTION("cut within the index") {
    std::filesystem::resize_file(path, 4096 + 20);
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    CHECK(store.count().stored == 0);
    CHECK(put(store, 0));
    CHECK(get(store, 0) == content(0));
  }
  SECTION("not if it belongs to another run, shape or budget") {
    CHECK(hidden_store(path, record_bytes, 4, plenty, "run 2").count().stored == 0);
  }
  SECTION("not with other rows") {
    CHECK(hidden_store(path, record_bytes, 5, plenty, "run 1").count().stored == 0);
  }
  SECTION("not with other records") {
    CHECK(hidden_store(path, record_bytes + 1, 4, plenty, "run 1").count().stored == 0);
  }
  SECTION("not after somebody wrote into its head") {
    flip_byte(path, 3);
    hidden_store store(path, record_bytes, 4, plenty, "run 1");
    CHECK(store.count().stored == 0);
    CHECK_FALSE(get(store, 2).has_value());
  }
}

TEST_CASE("an index of zeros holds no row") {
  const scratch_folder scratch;
  { hidden_store store(scratch / "h", record_bytes, 3, plenty); }
  hidden_store store(scratch / "h", record_bytes, 3, plenty);
  for (int64_t row = 0; row < 3; ++row) CHECK_FALSE(store.has(row));
}

TEST_CASE("a store that cannot be opened is an error of the user") {
  const scratch_folder scratch;
  CHECK_THAT(error_of([&] { hidden_store(scratch / "no/h", record_bytes, 3, plenty); }),
             Contains("no/h") && Contains("keep_hidden_states"));
  CHECK_THAT(error_of([&] { hidden_store(scratch.path(), record_bytes, 3, plenty); }),
             Contains("cannot open"));
}

TEST_CASE("a disk that refuses is counted, and the row can be put later") {
  const scratch_folder scratch;
  hidden_store store(scratch / "h", record_bytes, 4, plenty);
  REQUIRE(put(store, 0));
  // The limit on the size of a file stands for a full disk.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096 + 4096 + 3 * 4096 + 5000, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const bool kept = put(store, 1);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK_FALSE(kept);
  CHECK_FALSE(store.has(1));
  CHECK(store.count().failed == 1);
  CHECK_FALSE(store.count().last_error.empty());
  CHECK(get(store, 0) == content(0));
  CHECK(put(store, 1));
  CHECK(get(store, 1) == content(1));
  CHECK(store.capacity() == 4);
}

TEST_CASE("threads may put and get different rows at the same time") {
  const scratch_folder scratch;
  constexpr int64_t rows = 48;
  hidden_store store(scratch / "h", record_bytes, rows, plenty);
  std::vector<int> right(4);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t row = t; row < rows; row += 4)
        if (put(store, row) && get(store, row) == content(row)) ++right[t];
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int n : right) CHECK(n == rows / 4);
  for (int64_t row = 0; row < rows; ++row) CHECK(get(store, row) == content(row));
  CHECK(store.count().stored == rows);
  CHECK(store.count().failed == 0);
}

TEST_CASE("a finished store is opened for reading only, or refused by what is wrong") {
  const scratch_folder scratch;
  const auto path = scratch / "hidden.bin";
  const auto open = [&](int64_t rows = 3, std::string_view fingerprint = "a capture") {
    return hidden_store::open_complete(path, record_bytes, rows, fingerprint);
  };
  CHECK_THAT(error_of([&] { open(); }), Contains("hidden.bin"));
  {
    hidden_store store(
        path, record_bytes, 3, hidden_store::file_bytes(record_bytes, 3), "a capture");
    CHECK(store.capacity() == 3);
    for (const int64_t row : {2, 0}) put(store, row);
    CHECK_THAT(error_of([&] { open(); }), Contains("cut short"));
    put(store, 1);
    store.sync();
  }
  CHECK(std::filesystem::file_size(path) <= hidden_store::file_bytes(record_bytes, 3));
  const auto whole = open();
  for (const int64_t row : {0, 1, 2}) CHECK(get(*whole, row) == content(row));
  CHECK(whole->verify().empty());
  CHECK_THAT(error_of([&] { open(4); }), Contains("another capture"));
  CHECK_THAT(error_of([&] { open(3, "other"); }), Contains("fingerprint"));
  const uint64_t records = 8192;
  flip_byte(path, records + 12'288 * 2 + 77);  // the record put last: row 1
  CHECK(open()->verify() == std::vector<int64_t>{1});
  flip_byte(path, 4096 + 16 + 2);  // the entry of the second record: row 0
  CHECK_THAT(error_of([&] { open(); }), Contains("row 0"));
  flip_byte(path, 16);
  CHECK_THAT(error_of([&] { open(); }), Contains("head is damaged"));
  CHECK(std::filesystem::file_size(path) > records);  // reading changed nothing
}

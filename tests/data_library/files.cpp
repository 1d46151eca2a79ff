#include "data/files.hpp"

#include <catch2/catch.hpp>

#include "tests/data_library/scratch.hpp"

using namespace dflash;
using namespace dflash::test;
using Catch::Matchers::Contains;

TEST_CASE("SHA-256 gives the published values") {
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const scratch_folder scratch;
  const std::string long_text(3'000'000, 'a');
  write_bytes(scratch / "a", long_text);
  CHECK(sha256_file(scratch / "a") == sha256(long_text));
  CHECK_THAT(error_of([&] { sha256_file(scratch / "b"); }), Contains("cannot open"));
}

TEST_CASE("CRC-32C gives the published values and goes on from an earlier result") {
  // RFC 3720 B.4 and the catalogue's check value.
  const auto crc = [](std::string_view s) { return crc32c(std::as_bytes(std::span(s))); };
  CHECK(crc("123456789") == 0xE3069283);
  CHECK(crc(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(crc(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(crc("") == 0);
  const std::string_view text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  for (size_t cut = 0; cut <= bytes.size(); ++cut)
    CHECK(crc32c(bytes.subspan(cut), crc32c(bytes.first(cut))) == 0xE3069283);
}

TEST_CASE("a file is replaced as a whole or not at all") {
  const scratch_folder scratch;
  const auto path = scratch / "x";
  write_file_atomically(path, "old");
  {
    atomic_file file(path);
    file.write(std::as_bytes(std::span(std::string_view("new, but never finished"))));
  }
  CHECK(read_file(path) == "old");
  CHECK_FALSE(std::filesystem::exists(scratch / "x.tmp"));
  write_bytes(scratch / "x.tmp", "left behind by a crash, and longer than what follows");
  write_file_atomically(path, "new");
  CHECK(read_file(path) == "new");
  CHECK_THAT(error_of([&] { read_file(path, 2); }), Contains("3 bytes"));
  CHECK_THAT(error_of([&] { fsync_directory(scratch / "none"); }), Contains("none"));
}

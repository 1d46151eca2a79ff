#include "observe/tensorboard.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "tests/data_library/scratch.hpp"

namespace dflash {

namespace {

std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
T little_endian(std::string_view bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<unsigned char>(bytes.at(at + i))) << (8 * i);
  return value;
}

// A reader of its own: records by their lengths, messages by their fields.
std::vector<std::string> records(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const auto length = little_endian<std::uint64_t>(text, 0);
    const std::string payload(text.substr(12, length));
    CHECK(text.substr(0, 12) == tf_record(payload).substr(0, 12));
    CHECK(text.substr(12 + length, 4) == tf_record(payload).substr(12 + length));
    all.push_back(payload);
    text.remove_prefix(16 + length);
  }
  return all;
}

struct field {
  std::uint32_t number = 0;
  std::uint64_t integer = 0;  // varint, fixed32, fixed64
  std::string bytes;
};

std::vector<field> fields(std::string_view text) {
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto c = static_cast<unsigned char>(text.front());
      text.remove_prefix(1);
      value |= static_cast<std::uint64_t>(c & 0x7f) << shift;
      if (c < 0x80) return value;
    }
  };
  std::vector<field> all;
  while (!text.empty()) {
    const std::uint64_t key = varint();
    field f;
    f.number = static_cast<std::uint32_t>(key >> 3);
    std::size_t size = 0;
    switch (key & 7) {
      case 0:
        f.integer = varint();
        break;
      case 1:
        f.integer = little_endian<std::uint64_t>(text, 0);
        size = 8;
        break;
      case 2:
        size = varint();
        f.bytes = text.substr(0, size);
        break;
      case 5:
        f.integer = little_endian<std::uint32_t>(text, 0);
        size = 4;
        break;
      default:
        FAIL("a wire type that is not in use");
    }
    text.remove_prefix(size);
    all.push_back(std::move(f));
  }
  return all;
}

}  // namespace

TEST_CASE("CRC-32C has the values of RFC 3720") {
  CHECK(crc32c("123456789") == 0xe3069283U);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aaU);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43U);
  CHECK(crc32c("") == 0);
}

TEST_CASE("an event file holds a version, then one event a step with its scalars") {
  const test::scratch_folder folder;
  std::filesystem::path path;
  {
    tensorboard_writer writer(folder.path() / "tb", 1000.5);
    path = writer.path();
    const scalar scalars[] = {{"loss", 2.5}, {"acc_at/3", 0.25}, {"grad_norm", std::nan("")}};
    writer.write(300, 1001.5, scalars);
  }
  CHECK(path.filename().string().starts_with("events.out.tfevents.1000."));
  const auto all = records(file_text(path));
  REQUIRE(all.size() == 2);
  const auto version = fields(all[0]);
  REQUIRE(version.size() == 3);
  CHECK(version[2].number == 3);
  CHECK(version[2].bytes == "brain.Event:2");
  const auto event = fields(all[1]);
  REQUIRE(event.size() == 3);
  CHECK(std::bit_cast<double>(event[0].integer) == 1001.5);
  CHECK(event[1].number == 2);
  CHECK(event[1].integer == 300);
  CHECK(event[2].number == 5);
  const auto values = fields(event[2].bytes);
  REQUIRE(values.size() == 3);
  const auto loss = fields(values[0].bytes), accuracy = fields(values[1].bytes);
  CHECK(loss[0].bytes == "train/loss");
  CHECK(loss[1].number == 2);
  CHECK(std::bit_cast<float>(static_cast<std::uint32_t>(loss[1].integer)) == 2.5F);
  CHECK(accuracy[0].bytes == "acc_at/3");
}

TEST_CASE("a resumed run begins a file of its own and tells from where on older ones are void") {
  const test::scratch_folder folder;
  tensorboard_writer first(folder.path(), 1000);
  tensorboard_writer second(folder.path(), 1000, 40);
  CHECK(first.path() != second.path());
  const auto all = records(file_text(second.path()));
  REQUIRE(all.size() == 2);
  const auto start = fields(all[1]);
  CHECK(start[1].integer == 41);
  CHECK(start[2].number == 7);                    // session_log
  CHECK(fields(start[2].bytes)[0].integer == 1);  // START
}

TEST_CASE("a folder that cannot be made is a system error") {
  const test::scratch_folder folder;
  std::ofstream(folder.path() / "file") << "x";
  CHECK_THROWS_AS(tensorboard_writer(folder.path() / "file" / "tb", 1), std::system_error);
}

}  // namespace dflash

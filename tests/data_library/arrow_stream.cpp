#include "data/arrow_stream.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "data/files.hpp"
#include "tests/data_library/scratch.hpp"

using namespace dflash;

namespace {

template <class T>
T at(const std::string& bytes, size_t place) {
  T value;
  REQUIRE(place + sizeof value <= bytes.size());
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

// The place of a table's field, 0 if it is absent: table -> vtable -> place within the table.
size_t field(const std::string& b, size_t table, int slot) {
  const size_t vtable = table - static_cast<size_t>(at<int32_t>(b, table));
  if (4 + 2 * slot >= at<uint16_t>(b, vtable)) return 0;
  const auto place = at<uint16_t>(b, vtable + 4 + 2 * static_cast<size_t>(slot));
  return place == 0 ? 0 : table + place;
}

size_t follow(const std::string& b, size_t place) {
  return place + at<uint32_t>(b, place);
}

}  // namespace

// That pyarrow reads it is shown by tests/peers/test_capture.py; here the layout is walked by hand.
TEST_CASE("an Arrow stream of documents holds their tokens, masks and lengths") {
  const test::scratch_folder scratch;
  token_documents documents;
  documents.append(std::vector<int32_t>{5, 6, 7}, std::vector<uint8_t>{0, 1, 1});
  documents.append(std::vector<int32_t>{8}, std::vector<uint8_t>{1});
  write_arrow_documents(scratch / "a.arrow", documents);
  const std::string bytes = read_file(scratch / "a.arrow");
  REQUIRE(at<uint32_t>(bytes, 0) == 0xffffffff);
  const auto schema_bytes = at<uint32_t>(bytes, 4);
  CHECK(schema_bytes % 8 == 0);
  const size_t schema = 8;
  {
    const std::string b = bytes.substr(schema, schema_bytes);
    const size_t message = follow(b, 0);
    CHECK(at<uint8_t>(b, field(b, message, 1)) == 1);  // a schema
    const size_t fields = follow(b, field(b, follow(b, field(b, message, 2)), 1));
    REQUIRE(at<uint32_t>(b, fields) == 3);
    const char* names[] = {"input_ids", "loss_mask", "seq_len"};
    const int types[] = {12, 12, 2};
    for (size_t i = 0; i < 3; ++i) {
      const size_t entry = follow(b, fields + 4 + 4 * i);
      CHECK(std::string(b.c_str() + follow(b, field(b, entry, 0)) + 4) == names[i]);
      CHECK(at<uint8_t>(b, field(b, entry, 2)) == types[i]);
    }
  }
  const size_t batch = schema + schema_bytes;
  REQUIRE(at<uint32_t>(bytes, batch) == 0xffffffff);
  const auto metadata_bytes = at<uint32_t>(bytes, batch + 4);
  const std::string b = bytes.substr(batch + 8, metadata_bytes);
  const std::string body = bytes.substr(batch + 8 + metadata_bytes);
  const size_t message = follow(b, 0);
  CHECK(at<uint8_t>(b, field(b, message, 1)) == 3);  // a record batch
  const auto body_bytes = at<int64_t>(b, field(b, message, 3));
  CHECK(body.size() == static_cast<size_t>(body_bytes) + 8);
  const size_t header = follow(b, field(b, message, 2));
  CHECK(at<int64_t>(b, field(b, header, 0)) == 2);
  const size_t buffers = follow(b, field(b, header, 2));
  REQUIRE(at<uint32_t>(b, buffers) == 10);
  CHECK((buffers + 4) % 8 == 0);
  const auto buffer = [&](size_t i) {
    const auto offset = at<int64_t>(b, buffers + 4 + 16 * i);
    CHECK(offset % 64 == 0);
    return body.substr(static_cast<size_t>(offset),
                       static_cast<size_t>(at<int64_t>(b, buffers + 12 + 16 * i)));
  };
  const auto as_int64 = [](const std::string& raw) {
    std::vector<int64_t> values(raw.size() / 8);
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  };
  CHECK(at<int32_t>(buffer(1), 8) == 4);  // offsets 0 3 4
  CHECK(as_int64(buffer(3)) == std::vector<int64_t>{5, 6, 7, 8});
  CHECK(as_int64(buffer(7)) == std::vector<int64_t>{0, 1, 1, 1});
  CHECK(as_int64(buffer(9)) == std::vector<int64_t>{3, 1});
  CHECK(at<uint32_t>(body, static_cast<size_t>(body_bytes)) == 0xffffffff);
  CHECK(at<uint32_t>(body, static_cast<size_t>(body_bytes) + 4) == 0);
}

#include "messages/wire_frame.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <cstring>

#include "config/error.hpp"
#include "data/files.hpp"

using namespace dflash;

namespace {

using header_bytes = std::array<std::byte, frame_header_bytes>;

header_bytes header_of(const frame_header& header, uint16_t version = wire_version) {
  header_bytes bytes;
  encode_header(header, bytes, version);
  return bytes;
}

// The checksum made right again after a change, as a liar would.
void seal(header_bytes& bytes) {
  const uint32_t crc = crc32c(std::span(bytes).first(frame_header_bytes - 4));
  std::memcpy(bytes.data() + frame_header_bytes - 4, &crc, sizeof crc);
}

std::vector<std::byte> announcement_of(const std::vector<int64_t>& sizes) {
  return encode_announcement({"m", "{}", {{at::kBFloat16, sizes}}});
}

}  // namespace

TEST_CASE("a frame header comes back as it was") {
  const frame_header sent{frame_kind::chunk, 77, 1 << 20, 3, 0xdeadbeef};
  const frame_header got = decode_header(header_of(sent), {});
  CHECK(got.kind == sent.kind);
  CHECK(got.id == sent.id);
  CHECK(got.payload_bytes == sent.payload_bytes);
  CHECK(got.index == sent.index);
  CHECK(got.payload_crc == sent.payload_crc);
}

TEST_CASE("every flipped bit of a header is seen") {
  const header_bytes good = header_of({frame_kind::request, 1, 100, 0, 5});
  for (size_t bit = 0; bit < frame_header_bytes * 8; ++bit) {
    header_bytes bad = good;
    bad[bit / 8] ^= std::byte(1U << (bit % 8));
    INFO("bit " << bit);
    CHECK_THROWS(decode_header(bad, {}));
  }
}

TEST_CASE("a header of another version is refused by name, whatever else it holds") {
  header_bytes other = header_of({frame_kind::hello, 0, 4, 0, 0}, 2);
  other[31] ^= std::byte{0xff};  // a later version may have its checksum elsewhere
  CHECK_THROWS_AS(decode_header(other, {}), wire_refused);
  CHECK_THROWS_WITH(decode_header(other, {}),
                    "this side speaks data protocol 1, the peer 2: install the same version of "
                    "dflash on both");
}

TEST_CASE("a header may not claim more than its kind may have") {
  wire_limits limits;
  limits.max_tensors = 1;
  limits.max_text_bytes = 10;
  const auto fits = [&](frame_kind kind, uint32_t bytes) {
    try {
      decode_header(header_of({kind, 1, bytes, 0, 0}), limits);
      return true;
    } catch (const wire_lost&) {
      return false;
    }
  };
  CHECK(fits(frame_kind::chunk, 1 << 20));
  CHECK_FALSE(fits(frame_kind::chunk, (1 << 20) + 1));
  CHECK(fits(frame_kind::hello, 260));
  CHECK_FALSE(fits(frame_kind::hello, 261));
  CHECK_FALSE(fits(frame_kind::heartbeat, 1));
  CHECK_FALSE(fits(frame_kind::welcome, 1));
  CHECK_FALSE(fits(frame_kind::refusal, 4097));
  CHECK(fits(frame_kind::request, 12 + 10 + 66));
  CHECK_FALSE(fits(frame_kind::answer, 12 + 10 + 67));
  CHECK_FALSE(fits(static_cast<frame_kind>(0), 0));
  CHECK_FALSE(fits(static_cast<frame_kind>(9), 0));
  header_bytes flagged = header_of({frame_kind::heartbeat, 1, 0, 0, 0});
  flagged[7] = std::byte{1};
  seal(flagged);
  CHECK_THROWS_AS(decode_header(flagged, limits), wire_lost);
}

TEST_CASE("strangers who speak something else are told apart") {
  header_bytes tls{std::byte{0x16}, std::byte{0x03}, std::byte{0x01}};
  CHECK_THROWS_WITH(decode_header(tls, {}), Catch::Contains("speaks TLS"));
  header_bytes http{};
  std::memcpy(http.data(), "GET /healthz HTTP/1.1\r\nHost: nod", 32);
  CHECK_THROWS_WITH(decode_header(http, {}), Catch::Contains("no frame of dflash"));
}

TEST_CASE("a greeting comes back as it was") {
  const wire_hello got = decode_hello(encode_hello({1234, std::string("a\0b", 3)}));
  CHECK(got.timeout_ms == 1234);
  CHECK(got.token == std::string("a\0b", 3));
  CHECK(decode_hello(encode_hello({0, ""})).token.empty());
  CHECK_THROWS_AS(decode_hello(std::vector<std::byte>(3)), wire_lost);
  CHECK_THROWS_AS(decode_hello(std::vector<std::byte>(261)), wire_lost);
}

TEST_CASE("an announcement comes back as it was") {
  const wire_announcement sent{
      "capture", "{\"k\": 3}", {{at::kBFloat16, {3, 0, 5}}, {at::kFloat, {}}, {at::kBool, {7}}}};
  const wire_announcement got = decode_announcement(encode_announcement(sent), {});
  CHECK(got.method == sent.method);
  CHECK(got.body == sent.body);
  CHECK(got.tensors == sent.tensors);
  CHECK(got.tensors[0].bytes() == 0);
  CHECK(got.tensors[1].bytes() == 4);
  CHECK(got.tensors[0].text() == "BFloat16 [3, 0, 5]");
}

TEST_CASE("an announcement cut anywhere, or one byte longer, is refused") {
  const auto good = encode_announcement({"ab", "{}", {{at::kFloat, {2, 3}}, {at::kLong, {}}}});
  for (size_t n = 0; n < good.size(); ++n)
    CHECK_THROWS_AS(decode_announcement(std::span(good).first(n), {}), wire_lost);
  auto longer = good;
  longer.push_back({});
  CHECK_THROWS_AS(decode_announcement(longer, {}), wire_lost);
}

TEST_CASE("a tensor's sizes may not be negative, overflow, or pass the limit") {
  constexpr int64_t big = int64_t{1} << 62;
  wire_limits limits;
  limits.max_bytes = 100;
  CHECK_NOTHROW(decode_announcement(announcement_of({50}), limits));
  CHECK_THROWS_AS(decode_announcement(announcement_of({51}), limits), wire_lost);
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{-1}, {-1, -1}, {big, 2}, {big, 4, 4}, {0, big, big}, {big, big, 0}})
    CHECK_THROWS_AS(decode_announcement(announcement_of(sizes), {}), wire_lost);
  // Each fits, both do not.
  CHECK_THROWS_AS(
      decode_announcement(encode_announcement({"", "", {{at::kByte, {60}}, {at::kByte, {60}}}}),
                          limits),
      wire_lost);
}

TEST_CASE("unknown types, ranks, counts and text lengths are refused") {
  const auto good = encode_announcement({"", "", {{at::kFloat, {2}}}});
  const auto with = [&](size_t at, uint8_t value) {
    auto bytes = good;
    bytes[at] = std::byte{value};
    return bytes;
  };
  CHECK_THROWS_AS(decode_announcement(with(12, 0), {}), wire_lost);     // type
  CHECK_THROWS_AS(decode_announcement(with(12, 13), {}), wire_lost);    // type
  CHECK_THROWS_AS(decode_announcement(with(13, 9), {}), wire_lost);     // rank
  CHECK_THROWS_AS(decode_announcement(with(1, 0xff), {}), wire_lost);   // 65281 tensors
  CHECK_THROWS_AS(decode_announcement(with(7, 0xff), {}), wire_lost);   // 4 GB method
  CHECK_THROWS_AS(decode_announcement(with(11, 0xff), {}), wire_lost);  // 4 GB body
}

TEST_CASE("what is above the limits is said before it is sent") {
  wire_limits limits;
  limits.max_tensors = 1;
  limits.max_text_bytes = 4;
  limits.max_bytes = 8;
  CHECK(above_limits({"ab", "cd", {{at::kFloat, {2}}}}, limits).empty());
  CHECK(above_limits({"ab", "cde", {}}, limits) == "5 bytes of text, the limit is 4");
  CHECK(above_limits({"", "", {{at::kFloat, {}}, {at::kFloat, {}}}}, limits) ==
        "2 tensors, the limit is 1");
  CHECK(above_limits({"", "", {{at::kFloat, {3}}}}, limits) == "12 bytes, the limit is 8");
  CHECK(above_limits({"", "", {{at::kComplexFloat, {1}}}}, limits) ==
        "a tensor ComplexFloat [1] cannot be sent");
  CHECK(above_limits({"", "", {{at::kFloat, {1, 1, 1, 1, 1, 1, 1, 1, 1}}}}, limits) != "");
}

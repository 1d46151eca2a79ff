#include "messages/wire_frame.hpp"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

static_assert(std::endian::native == std::endian::little);
constexpr uint32_t magic = 0x72'77'46'44;  // "DFwr"
constexpr uint16_t tls_record = 0x03'16;   // how a TLS handshake begins
constexpr size_t max_rank = 8;
constexpr size_t announcement_head_bytes = 12;

// By code on the wire, from 1; never reordered within a version.
constexpr std::array dtypes = {at::ScalarType::Bool,
                               at::ScalarType::Byte,
                               at::ScalarType::Char,
                               at::ScalarType::Short,
                               at::ScalarType::Int,
                               at::ScalarType::Long,
                               at::ScalarType::Half,
                               at::ScalarType::BFloat16,
                               at::ScalarType::Float,
                               at::ScalarType::Double,
                               at::ScalarType::Float8_e4m3fn,
                               at::ScalarType::Float8_e5m2};

template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <class T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// 0: none.
uint8_t code_of(at::ScalarType dtype) {
  const auto* found = std::find(dtypes.begin(), dtypes.end(), dtype);
  return found == dtypes.end() ? 0 : static_cast<uint8_t>(found - dtypes.begin() + 1);
}

// Bytes of a tensor; none if it is of no use: also [0, 2^62, 2^62], whose strides overflow.
std::optional<uint64_t> bytes_of(const wire_shape& shape) {
  uint64_t strided = c10::elementSize(shape.dtype), bytes = strided;
  for (const int64_t size : shape.sizes) {
    if (size < 0) return {};
    const auto n = static_cast<uint64_t>(size);
    if (__builtin_mul_overflow(strided, std::max<uint64_t>(n, 1), &strided)) return {};
    bytes *= n;
  }
  if (strided > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return {};
  return bytes;
}

uint64_t max_payload(frame_kind kind, const wire_limits& limits) {
  switch (kind) {
    case frame_kind::hello:
      return sizeof(uint32_t) + max_token_bytes;
    case frame_kind::refusal:
    case frame_kind::failure:
      return max_refusal_bytes;
    case frame_kind::request:
    case frame_kind::answer:
      return max_announcement_bytes(limits);
    case frame_kind::chunk:
      return max_chunk_bytes;
    case frame_kind::welcome:
    case frame_kind::heartbeat:
      return 0;
  }
  throw wire_lost("a frame of unknown kind " + std::to_string(static_cast<int>(kind)));
}

}  // namespace

uint64_t wire_shape::bytes() const {
  const auto bytes = bytes_of(*this);
  DFLASH_CHECK(bytes.has_value(), "a shape that was not checked", text());
  return *bytes;
}

std::string wire_shape::text() const {
  std::string text = c10::toString(dtype);
  text += " [";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

wire_shape shape_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec()};
}

void encode_header(const frame_header& header, std::span<std::byte> out, uint16_t version) {
  DFLASH_CHECK(out.size() >= frame_header_bytes, "no room for a frame header", out.size());
  std::byte* at = out.data();
  put(at, magic);
  put(at + 4, version);
  put(at + 6, static_cast<uint8_t>(header.kind));
  put(at + 7, uint8_t{0});
  put(at + 8, header.id);
  put(at + 16, header.payload_bytes);
  put(at + 20, header.index);
  put(at + 24, header.payload_crc);
  put(at + 28, crc32c(out.first(frame_header_bytes - 4)));
}

frame_header decode_header(std::span<const std::byte> bytes, const wire_limits& limits) {
  DFLASH_CHECK(bytes.size() == frame_header_bytes, "a frame header has one size", bytes.size());
  const std::byte* at = bytes.data();
  if (get<uint32_t>(at) != magic)
    throw wire_lost(get<uint16_t>(at) == tls_record
                        ? "the peer speaks TLS and this side does not"
                        : "what came is no frame of dflash's data protocol");
  const auto version = get<uint16_t>(at + 4);
  if (version != wire_version)
    throw wire_refused("this side speaks data protocol " + std::to_string(wire_version) +
                       ", the peer " + std::to_string(version) +
                       ": install the same version of dflash on both");
  if (get<uint32_t>(at + 28) != crc32c(bytes.first(frame_header_bytes - 4)))
    throw wire_lost("a frame header is damaged (checksum)");
  frame_header header;
  header.kind = static_cast<frame_kind>(get<uint8_t>(at + 6));
  header.id = get<uint64_t>(at + 8);
  header.payload_bytes = get<uint32_t>(at + 16);
  header.index = get<uint32_t>(at + 20);
  header.payload_crc = get<uint32_t>(at + 24);
  const uint64_t limit = max_payload(header.kind, limits);
  if (get<uint8_t>(at + 7) != 0 || header.payload_bytes > limit)
    throw wire_lost("a frame of kind " + std::to_string(static_cast<int>(header.kind)) +
                    " claims " + std::to_string(header.payload_bytes) + " bytes; the limit is " +
                    std::to_string(limit));
  return header;
}

std::vector<std::byte> encode_hello(const wire_hello& hello) {
  DFLASH_CHECK(hello.token.size() <= max_token_bytes, "a token is short", hello.token.size());
  std::vector<std::byte> out(sizeof hello.timeout_ms + hello.token.size());
  put(out.data(), hello.timeout_ms);
  std::memcpy(out.data() + sizeof hello.timeout_ms, hello.token.data(), hello.token.size());
  return out;
}

wire_hello decode_hello(std::span<const std::byte> payload) {
  wire_hello hello;
  if (payload.size() < sizeof hello.timeout_ms ||
      payload.size() > sizeof hello.timeout_ms + max_token_bytes)
    throw wire_lost("a greeting of " + std::to_string(payload.size()) + " bytes");
  hello.timeout_ms = get<uint32_t>(payload.data());
  const auto token = payload.subspan(sizeof hello.timeout_ms);
  hello.token.assign(reinterpret_cast<const char*>(token.data()), token.size());
  return hello;
}

uint64_t max_announcement_bytes(const wire_limits& limits) {
  return announcement_head_bytes + limits.max_text_bytes +
         uint64_t{limits.max_tensors} * (2 + max_rank * sizeof(int64_t));
}

std::string above_limits(const wire_announcement& a, const wire_limits& limits) {
  const auto count = [](const char* what, uint64_t have, uint64_t limit) {
    return std::to_string(have) + " " + what + ", the limit is " + std::to_string(limit);
  };
  if (a.tensors.size() > limits.max_tensors)
    return count("tensors", a.tensors.size(), limits.max_tensors);
  if (a.method.size() + a.body.size() > limits.max_text_bytes)
    return count("bytes of text", a.method.size() + a.body.size(), limits.max_text_bytes);
  uint64_t total = 0;
  for (const wire_shape& shape : a.tensors) {
    const auto bytes = bytes_of(shape);
    if (!bytes || shape.sizes.size() > max_rank || code_of(shape.dtype) == 0)
      return "a tensor " + shape.text() + " cannot be sent";
    total += *bytes;
  }
  return total > limits.max_bytes ? count("bytes", total, limits.max_bytes) : std::string();
}

// Tensors, length of the method, length of the body: 4 bytes each; per tensor code of its dtype,
// rank, sizes; method; body.
std::vector<std::byte> encode_announcement(const wire_announcement& a) {
  size_t bytes = announcement_head_bytes + a.method.size() + a.body.size();
  for (const wire_shape& shape : a.tensors) bytes += 2 + shape.sizes.size() * sizeof(int64_t);
  std::vector<std::byte> out(bytes);
  std::byte* at = out.data();
  put(at, narrow<uint32_t>(a.tensors.size()));
  put(at + 4, narrow<uint32_t>(a.method.size()));
  put(at + 8, narrow<uint32_t>(a.body.size()));
  at += announcement_head_bytes;
  for (const wire_shape& shape : a.tensors) {
    const uint8_t code = code_of(shape.dtype);
    DFLASH_CHECK(code != 0 && shape.sizes.size() <= max_rank, "above_limits says so", shape.text());
    put(at, code);
    put(at + 1, static_cast<uint8_t>(shape.sizes.size()));
    at += 2;
    for (const int64_t size : shape.sizes) {
      put(at, size);
      at += sizeof size;
    }
  }
  at = std::transform(a.method.begin(), a.method.end(), at, [](char c) { return std::byte(c); });
  std::transform(a.body.begin(), a.body.end(), at, [](char c) { return std::byte(c); });
  return out;
}

wire_announcement decode_announcement(std::span<const std::byte> payload,
                                      const wire_limits& limits) {
  const auto take = [&payload](uint64_t n) {
    if (payload.size() < n) throw wire_lost("an announcement that ends too early");
    const auto taken = payload.first(n);
    payload = payload.subspan(n);
    return taken;
  };
  const auto head = take(announcement_head_bytes);
  const auto tensors = get<uint32_t>(head.data());
  const auto method = get<uint32_t>(head.data() + 4);
  const auto body = get<uint32_t>(head.data() + 8);
  if (tensors > limits.max_tensors || uint64_t{method} + body > limits.max_text_bytes)
    throw wire_lost("an announcement of " + std::to_string(tensors) + " tensors and " +
                    std::to_string(uint64_t{method} + body) + " bytes of text is above the limits");
  wire_announcement a;
  uint64_t total = 0;
  for (uint32_t i = 0; i < tensors; ++i) {
    const auto kind = take(2);
    const auto code = get<uint8_t>(kind.data()), rank = get<uint8_t>(kind.data() + 1);
    if (code < 1 || code > dtypes.size() || rank > max_rank)
      throw wire_lost("tensor " + std::to_string(i) + " is of unknown type " +
                      std::to_string(code) + " or rank " + std::to_string(rank));
    const auto sizes = take(rank * sizeof(int64_t));
    wire_shape shape;
    shape.dtype = dtypes[code - 1];
    for (size_t d = 0; d < rank; ++d)
      shape.sizes.push_back(get<int64_t>(sizes.data() + d * sizeof(int64_t)));
    const auto bytes = bytes_of(shape);
    if (!bytes || *bytes > limits.max_bytes - total)
      throw wire_lost("tensor " + std::to_string(i) + " is " + shape.text() +
                      ": negative, or above the limit of " + std::to_string(limits.max_bytes) +
                      " bytes a message");
    total += *bytes;
    a.tensors.push_back(std::move(shape));
  }
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  a.method = text(take(method));
  a.body = text(take(body));
  if (!payload.empty())
    throw wire_lost("an announcement with " + std::to_string(payload.size()) + " bytes too many");
  return a;
}

}  // namespace dflash

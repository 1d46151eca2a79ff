// Frames of data connections. The first byte chooses what the others are: a header, a greeting, an
// announcement, a whole stream of frames that a peer reads, or a message that is sent and read.
#include "messages/wire_frame.hpp"

#include <ATen/ops/zeros.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "config/error.hpp"
#include "data/files.hpp"
#include "fuzz_target.hpp"
#include "messages/wire_exchange.hpp"

namespace {

using namespace dflash;

constexpr size_t payload_at = 16, payload_crc_at = 24, crc_at = 28;

wire_limits limits_of_test() {
  wire_limits limits;
  limits.max_bytes = 1 << 20;
  limits.max_tensors = 16;
  limits.max_text_bytes = 1000;
  limits.chunk_bytes = 4096;
  return limits;
}

template <class Decoder>
void refusing(Decoder&& decoder) {
  decode([&] {
    try {
      decoder();
    } catch (const wire_lost& problem) {
      check_refusal(problem);
    } catch (const wire_refused& problem) {
      check_refusal(problem);
    }
  });
}

// Checksums made right, as a liar would: otherwise no change would come further than those.
void seal(std::span<std::byte> frame, std::span<const std::byte> payload) {
  const uint32_t payload_crc = crc32c(payload);
  std::memcpy(frame.data() + payload_crc_at, &payload_crc, sizeof payload_crc);
  const uint32_t crc = crc32c(frame.first(crc_at));
  std::memcpy(frame.data() + crc_at, &crc, sizeof crc);
}

void seal_all(std::span<std::byte> stream) {
  while (stream.size() >= frame_header_bytes) {
    uint32_t size = 0;
    std::memcpy(&size, stream.data() + payload_at, sizeof size);
    const auto rest = stream.subspan(frame_header_bytes);
    const auto payload = rest.first(std::min<size_t>(size, rest.size()));
    seal(stream.first(frame_header_bytes), payload);
    stream = rest.subspan(payload.size());
  }
}

void announcement(std::span<const std::byte> bytes, const wire_limits& limits) {
  const wire_announcement a = decode_announcement(bytes, limits);
  DFLASH_CHECK(above_limits(a, limits).empty(), "an announcement above the limits was taken");
  const auto again = encode_announcement(a);
  DFLASH_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
               "an announcement has one form");
  for (const wire_shape& shape : a.tensors) touch(std::as_bytes(std::span(shape.sizes)));
}

// What a server does with the frames of a client, and a client with those of a server.
void read_stream(std::span<const std::byte> bytes) {
  const wire_limits limits = limits_of_test();
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return;
  wire_stream ours{file_descriptor(pair[0])}, theirs{file_descriptor(pair[1])};
  const auto deadline = wire_clock::now() + std::chrono::seconds(5);
  theirs.write({}, bytes, deadline);
  theirs.shut();
  refusing([&] {
    for (;;) {
      const frame_header header = receive_header(ours, limits, deadline);
      if (header.kind != frame_kind::request && header.kind != frame_kind::answer) {
        receive_payload(ours, header, deadline);
        continue;
      }
      const auto a = decode_announcement(receive_payload(ours, header, deadline), limits);
      const auto places = [](const wire_announcement& of) -> std::vector<at::Tensor> {
        if (of.method == "no") throw error("not wanted");
        return {};
      };
      const received_tensors got = receive_tensors(ours, header.id, a, places, limits);
      for (const at::Tensor& t : got.tensors)
        touch({static_cast<const std::byte*>(t.data_ptr()), t.nbytes()});
    }
  });
}

// Two bytes a tensor: its type with its rank, and its length.
wire_message message_of(std::span<const std::byte> bytes) {
  constexpr std::array types{at::kByte, at::kBFloat16, at::kFloat, at::kLong, at::kBool};
  const size_t tensors = std::min<size_t>(20, bytes.size() / 3);
  wire_message m;
  for (size_t i = 0; i < tensors; ++i) {
    const auto kind = std::to_integer<unsigned>(bytes[2 * i]);
    const int64_t length = std::to_integer<int64_t>(bytes[2 * i + 1]);
    const auto options = at::TensorOptions().dtype(types[kind % types.size()]);
    const at::Tensor t = at::zeros({length, 1 + kind / 64}, options);
    m.tensors.push_back(kind >= 128 ? t.t() : t);  // not contiguous
  }
  const auto text = bytes.subspan(2 * tensors);
  m.method.assign(reinterpret_cast<const char*>(text.data()), text.size() / 2);
  m.body.assign(reinterpret_cast<const char*>(text.data()) + text.size() / 2,
                text.size() - text.size() / 2);
  return m;
}

void send_and_read(std::span<const std::byte> bytes) {
  const wire_limits limits = limits_of_test();
  const wire_message sent = message_of(bytes);
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return;
  wire_stream ours{file_descriptor(pair[0])}, theirs{file_descriptor(pair[1])};
  const auto deadline = wire_clock::now() + std::chrono::seconds(5);
  refusing([&] {
    send_message(ours, frame_kind::request, 7, sent, limits);  // above the limits: nothing is sent
    const frame_header header = receive_header(theirs, limits, deadline);
    const auto a = decode_announcement(receive_payload(theirs, header, deadline), limits);
    const received_tensors got = receive_tensors(theirs, header.id, a, {}, limits);
    DFLASH_CHECK(a.method == sent.method && a.body == sent.body,
                 "a message arrives as it was sent");
    DFLASH_CHECK(got.tensors.size() == sent.tensors.size(), "all tensors arrive");
    for (size_t i = 0; i < sent.tensors.size(); ++i)
      DFLASH_CHECK(got.tensors[i].equal(sent.tensors[i]), "a tensor arrives as it was sent", i);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin + 1, begin + size);
  switch (data[0] % 6) {
    case 0:
      bytes.resize(frame_header_bytes);
      refusing([&] { decode_header(bytes, {}); });
      seal(bytes, {});
      refusing([&] { decode_header(bytes, {}); });
      break;
    case 1:
      refusing([&] {
        const wire_hello hello = decode_hello(bytes);
        touch(std::as_bytes(std::span(hello.token)));
      });
      break;
    case 2:
      refusing([&] { announcement(bytes, {}); });
      break;
    case 3:
      refusing([&] { announcement(bytes, limits_of_test()); });
      break;
    case 5:
      bytes.resize(std::min<size_t>(bytes.size(), 500));  // fits the socket's buffer
      send_and_read(bytes);
      break;
    default:
      bytes.resize(std::min<size_t>(bytes.size(), 60'000));  // fits the socket's buffer
      seal_all(bytes);
      read_stream(bytes);
  }
  return 0;
}

#include "messages/wire_exchange.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void send_tensor(wire_stream& stream,
                 uint64_t id,
                 const at::Tensor& tensor,
                 uint32_t& index,
                 const wire_limits& limits) {
  std::array<std::byte, frame_header_bytes> head;
  std::span<const std::byte> left = bytes_of(tensor);
  const size_t size = std::clamp<size_t>(limits.chunk_bytes, 1, max_chunk_bytes);
  while (!left.empty()) {
    const auto chunk = left.first(std::min(size, left.size()));
    encode_header({.kind = frame_kind::chunk,
                   .id = id,
                   .payload_bytes = static_cast<uint32_t>(chunk.size()),
                   .index = index++,
                   .payload_crc = crc32c(chunk)},
                  head);
    stream.write(head, chunk, wire_clock::now() + limits.timeout);
    left = left.subspan(chunk.size());
  }
}

wire_announcement announce(const wire_message& message, const wire_limits& limits) {
  wire_announcement announcement{message.method, message.body, {}};
  for (const at::Tensor& tensor : message.tensors) {
    DFLASH_CHECK(tensor.defined() && tensor.device().is_cpu(),
                 "tensors that go to another node are on the CPU",
                 message.method);
    announcement.tensors.push_back(shape_of(tensor));
  }
  if (const std::string problem = above_limits(announcement, limits); !problem.empty())
    throw error("a message to another node is above its limits: " + problem, message.method);
  return announcement;
}

void check_place(const at::Tensor& place, const wire_shape& shape, size_t i) {
  const wire_shape given = shape_of(place);
  if (given != shape)
    throw wire_refused("tensor " + std::to_string(i) + " is " + shape.text() + ", wanted is " +
                       given.text());
  DFLASH_CHECK(place.device().is_cpu() && place.is_contiguous(),
               "memory for a tensor from another node is contiguous and on the CPU",
               shape.text());
}

std::vector<at::Tensor> places_for(const wire_announcement& announcement,
                                   const tensor_places& places) {
  std::vector<at::Tensor> tensors;
  if (places) tensors = places(announcement);
  if (tensors.size() > announcement.tensors.size())
    throw wire_refused(std::to_string(announcement.tensors.size()) + " tensors come, wanted are " +
                       std::to_string(tensors.size()));
  tensors.resize(announcement.tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const wire_shape& shape = announcement.tensors[i];
    if (tensors[i].defined())
      check_place(tensors[i], shape, i);
    else
      tensors[i] = at::empty(shape.sizes, at::TensorOptions().dtype(shape.dtype));
  }
  return tensors;
}

// Any other byte than 0 and 1 in a bool is undefined for whoever reads it.
void check_bools(const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kBool) return;
  const auto bytes = bytes_of(tensor);
  if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; }))
    throw wire_lost("a bool tensor with a byte that is neither 0 nor 1");
}

// Receives chunks in order; the place of each is known before its bytes are read.
class chunk_reader {
public:
  chunk_reader(wire_stream& stream, uint64_t id, const wire_limits& limits)
      : stream_(stream), id_(id), limits_(limits) {}

  void read_into(std::span<std::byte> left) {
    while (!left.empty()) {
      const frame_header header = next(left.size());
      const auto place = left.first(header.payload_bytes);
      stream_.read(place, wire_clock::now() + limits_.timeout);
      check(header, place);
      left = left.subspan(place.size());
    }
  }

  void pass_over(uint64_t bytes) {
    std::vector<std::byte> scratch(std::min<uint64_t>(bytes, max_chunk_bytes));
    while (bytes > 0) {
      const frame_header header = next(bytes);
      const auto place = std::span(scratch).first(header.payload_bytes);
      stream_.read(place, wire_clock::now() + limits_.timeout);
      bytes -= place.size();
    }
  }

private:
  frame_header next(uint64_t wanted) {
    const frame_header header =
        receive_header(stream_, limits_, wire_clock::now() + limits_.timeout);
    if (header.kind == frame_kind::refusal)
      throw wire_lost("the peer stops: " +
                      receive_text(stream_, header, wire_clock::now() + limits_.timeout));
    if (header.kind != frame_kind::chunk || header.id != id_ || header.index != index_)
      throw wire_lost("a frame of kind " + std::to_string(static_cast<int>(header.kind)) +
                      " where chunk " + std::to_string(index_) + " was due");
    if (header.payload_bytes == 0 || header.payload_bytes > wanted)
      throw wire_lost("chunk " + std::to_string(index_) + " has " +
                      std::to_string(header.payload_bytes) + " bytes, its tensor lacks " +
                      std::to_string(wanted));
    ++index_;
    return header;
  }
  void check(const frame_header& header, std::span<const std::byte> bytes) const {
    if (crc32c(bytes) != header.payload_crc)
      throw wire_lost("chunk " + std::to_string(header.index) + " is damaged (checksum)");
  }

  wire_stream& stream_;
  uint64_t id_;
  const wire_limits& limits_;
  uint32_t index_ = 0;
};

}  // namespace

void send_frame(wire_stream& stream,
                frame_kind kind,
                uint64_t id,
                std::span<const std::byte> payload,
                const wire_limits& limits) {
  std::array<std::byte, frame_header_bytes> head;
  encode_header({.kind = kind,
                 .id = id,
                 .payload_bytes = narrow<uint32_t>(payload.size()),
                 .index = 0,
                 .payload_crc = crc32c(payload)},
                head);
  stream.write(head, payload, wire_clock::now() + limits.timeout);
}

void send_text(wire_stream& stream,
               frame_kind kind,
               uint64_t id,
               std::string_view text,
               const wire_limits& limits) {
  text = text.substr(0, max_refusal_bytes);
  send_frame(stream, kind, id, std::as_bytes(std::span(text)), limits);
}

frame_header receive_header(wire_stream& stream,
                            const wire_limits& limits,
                            wire_clock::time_point deadline) {
  std::array<std::byte, frame_header_bytes> head;
  stream.read(head, deadline);
  return decode_header(head, limits);
}

std::vector<std::byte> receive_payload(wire_stream& stream,
                                       const frame_header& header,
                                       wire_clock::time_point deadline) {
  std::vector<std::byte> payload(header.payload_bytes);
  stream.read(payload, deadline);
  if (crc32c(payload) != header.payload_crc) throw wire_lost("a frame is damaged (checksum)");
  return payload;
}

std::string receive_text(wire_stream& stream,
                         const frame_header& header,
                         wire_clock::time_point deadline) {
  const auto payload = receive_payload(stream, header, deadline);
  std::string text(reinterpret_cast<const char*>(payload.data()), payload.size());
  // It will be shown to people, on terminals too.
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < ' ' && c != '\n') || c == 127) c = '?';
  return text.empty() ? "it gives no reason" : text;
}

uint64_t send_message(wire_stream& stream,
                      frame_kind kind,
                      uint64_t id,
                      const wire_message& message,
                      const wire_limits& limits) {
  const wire_announcement announcement = announce(message, limits);
  send_frame(stream, kind, id, encode_announcement(announcement), limits);
  uint32_t index = 0;
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : message.tensors) {
    send_tensor(stream, id, tensor.contiguous(), index, limits);
    bytes += tensor.nbytes();
  }
  return bytes;
}

received_tensors receive_tensors(wire_stream& stream,
                                 uint64_t id,
                                 const wire_announcement& announcement,
                                 const tensor_places& places,
                                 const wire_limits& limits) {
  received_tensors received;
  for (const wire_shape& shape : announcement.tensors) received.bytes += shape.bytes();
  chunk_reader chunks(stream, id, limits);
  try {
    received.tensors = places_for(announcement, places);
  } catch (const std::exception& refused) {
    received.refusal = refused.what();
    if (received.refusal.empty()) received.refusal = "this message is not wanted";
  }
  if (!received.refusal.empty()) {
    chunks.pass_over(received.bytes);
    return received;
  }
  for (const at::Tensor& tensor : received.tensors) {
    chunks.read_into(bytes_of(tensor));
    check_bools(tensor);
  }
  return received;
}

}  // namespace dflash

// Frames of data connections as bytes: pure functions, no sockets. Everything decoded comes from a
// stranger and is checked before it is believed. docs/wire.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/wire_limits.hpp"
#include "messages/wire_message.hpp"

namespace dflash {

constexpr uint16_t wire_version = 1;
constexpr size_t frame_header_bytes = 32;
constexpr uint32_t max_chunk_bytes = 1 << 20;
constexpr uint32_t max_token_bytes = 256;
constexpr uint32_t max_refusal_bytes = 4096;

enum class frame_kind : uint8_t {
  hello = 1,  // client: its timeout, its token
  welcome,    // server: a session is there
  refusal,    // server, instead of welcome or before it hangs up: why
  request,    // client: announcement of a message; its chunks follow
  answer,     // server: the same
  failure,    // server, instead of an answer: what the handler threw
  chunk,      // bytes of one tensor of the message that was announced
  heartbeat,  // server: still computing
};

struct frame_header {
  frame_kind kind = frame_kind::heartbeat;
  uint64_t id = 0;             // of the call, from 1; 0 before any
  uint32_t payload_bytes = 0;  // follow the header
  uint32_t index = 0;          // of a chunk in its message, from 0
  uint32_t payload_crc = 0;    // crc32c
};

// In place, at least frame_header_bytes.
void encode_header(const frame_header& header,
                   std::span<std::byte> out,
                   uint16_t version = wire_version);
// Of exactly frame_header_bytes. Throws wire_refused if it is of another version (whose first six
// bytes are laid out as here), wire_lost if it is no header, is damaged, or claims a payload above
// what its kind may have.
frame_header decode_header(std::span<const std::byte> bytes, const wire_limits& limits);

struct wire_hello {
  uint32_t timeout_ms = 0;  // of the client: it wants to hear from us more often
  std::string token;
};
std::vector<std::byte> encode_hello(const wire_hello& hello);
wire_hello decode_hello(std::span<const std::byte> payload);

// What is too much or has no code on the wire; empty: it may go.
std::string above_limits(const wire_announcement& announcement, const wire_limits& limits);
// Of one that is within the limits.
std::vector<std::byte> encode_announcement(const wire_announcement& announcement);
// Throws wire_lost where the bytes are no announcement or it is above the limits: then no memory is
// taken for it but that of its texts and sizes, which are there.
wire_announcement decode_announcement(std::span<const std::byte> payload,
                                      const wire_limits& limits);

// Largest payload of an announcement within the limits.
uint64_t max_announcement_bytes(const wire_limits& limits);

}  // namespace dflash

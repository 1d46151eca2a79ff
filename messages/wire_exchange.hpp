// Frames and messages on a stream: what client and server of a data connection share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/wire_frame.hpp"
#include "messages/wire_stream.hpp"

namespace dflash {

// A header with its small payload (no chunk). Within limits.timeout.
void send_frame(wire_stream& stream,
                frame_kind kind,
                uint64_t id,
                std::span<const std::byte> payload,
                const wire_limits& limits);
void send_text(wire_stream& stream,
               frame_kind kind,
               uint64_t id,
               std::string_view text,
               const wire_limits& limits);

// The next header; the whole of it by the deadline.
frame_header receive_header(wire_stream& stream,
                            const wire_limits& limits,
                            wire_clock::time_point deadline);
// Its payload, checked. Memory is taken for as much as the header's kind may have.
std::vector<std::byte> receive_payload(wire_stream& stream,
                                       const frame_header& header,
                                       wire_clock::time_point deadline);
// As text for people: no control characters, never empty.
std::string receive_text(wire_stream& stream,
                         const frame_header& header,
                         wire_clock::time_point deadline);

// Announcement and chunks, straight from the memory of the tensors, each frame within
// limits.timeout. Tensors are on the CPU; one that is not contiguous is copied first. Throws error
// before anything is sent where the message is above the limits. Returns bytes of tensors.
uint64_t send_message(wire_stream& stream,
                      frame_kind kind,
                      uint64_t id,
                      const wire_message& message,
                      const wire_limits& limits);

// The chunks that follow an announcement, straight into `places` or into memory taken for them.
struct received_tensors {
  std::vector<at::Tensor> tensors;
  uint64_t bytes = 0;
  std::string refusal;  // what `places` threw: the bytes were passed over
};
received_tensors receive_tensors(wire_stream& stream,
                                 uint64_t id,
                                 const wire_announcement& announcement,
                                 const tensor_places& places,
                                 const wire_limits& limits);

}  // namespace dflash

// What nodes and runs say to each other: greetings, requests for a lane, and the calls to a lane
// with their tensors. The first byte chooses the decoder. Calls with tensors go on with two bytes
// for each (type, length), a zero byte, a number of values, the values (a byte each, given to the
// elements in turn), and the text.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "actors/lane_protocol.hpp"
#include "fuzz_target.hpp"
#include "messages/node_greeting.hpp"

namespace {

using namespace dflash;

// Refusals of these decoders are std::runtime_error: they go to the peer as text.
template <class Decoder>
void refusing(Decoder&& decoder) {
  decode([&] {
    try {
      decoder();
    } catch (const std::runtime_error& problem) {
      check_refusal(problem);
    }
  });
}

wire_message message_of(std::string_view rest) {
  constexpr std::array types{at::kInt, at::kByte, at::kLong, at::kFloat, at::kBFloat16};
  const auto byte = [&](size_t at) {
    return at < rest.size() ? static_cast<unsigned char>(rest[at]) : 0U;
  };
  wire_message m;
  size_t at = 0;
  for (; byte(at) != 0 && m.tensors.size() < 16; at += 2) {
    const int64_t length = byte(at + 1);
    const auto options = at::TensorOptions().dtype(types[byte(at) % types.size()]);
    m.tensors.push_back(byte(at) >= 128 ? at::zeros({length, 2}, options)
                                        : at::zeros({length}, options));
  }
  const size_t values = byte(++at);
  size_t next = ++at;
  for (at::Tensor& t : m.tensors) {
    if (t.dim() != 1 || values == 0) continue;
    auto* const bytes = static_cast<unsigned char*>(t.mutable_data_ptr());
    for (int64_t i = 0; i < t.numel(); ++i, ++next)
      bytes[static_cast<size_t>(i) * t.element_size()] =
          static_cast<unsigned char>(byte(at + (next - at) % values));
  }
  m.body = rest.substr(std::min(rest.size(), at + values));
  return m;
}

void check_batch(const batch& b) {
  touch(std::as_bytes(std::span(b.input_ids)));
  for (const int32_t a : b.anchors)
    DFLASH_CHECK(a >= 0 && a < static_cast<int64_t>(b.input_ids.size()), "an anchor of the row");
  for (size_t i = 1; i < b.doc_offsets.size(); ++i)
    DFLASH_CHECK(b.doc_offsets[i - 1] <= b.doc_offsets[i] &&
                     b.doc_offsets[i] <= static_cast<int64_t>(b.input_ids.size()),
                 "a document of the row");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest = as_text(data + 1, size - 1);
  const std::string text(rest);
  switch (data[0] % 9) {
    case 0:
      refusing([&] {
        const node_greeting g = parse_greeting(rest);
        DFLASH_CHECK(to_json(parse_greeting(to_json(g))) == to_json(g), "a greeting has one form");
        DFLASH_CHECK(disagreement(g, g).empty(), "a node agrees with itself");
        const std::string why = disagreement(g, {});
        touch(std::as_bytes(std::span(why)));
      });
      break;
    case 1:
      refusing([&] { to_json(parse_lend_request(rest)); });
      break;
    case 2:
      refusing([&] { to_json(parse_lend_answer(rest)); });
      break;
    case 3:
      refusing([&] {
        const batch b = batch_of_capture(message_of(rest));
        check_batch(b);
        DFLASH_CHECK(batch_of_capture(capture_request(b)).input_ids == b.input_ids,
                     "a request arrives as it was sent");
      });
      break;
    case 4:
      refusing([&] {
        const accumulate_request r = decode_accumulate(message_of(rest));
        check_batch(r.tokens);
        const accumulate_request again =
            decode_accumulate(encode_accumulate(r.tokens, r.hidden, r.has_last, r.measured));
        DFLASH_CHECK(again.tokens.anchors == r.tokens.anchors, "a batch arrives as it was sent");
      });
      break;
    case 5:
      refusing([&] { encode_sums(decode_sums(text)); });
      break;
    case 6:
      refusing([&] { encode_update(decode_update(text)); });
      refusing([&] {
        const gradient_range r = decode_range(text, 1000);
        DFLASH_CHECK(r.begin >= 0 && r.count > 0 && r.begin + r.count <= 1000,
                     "a range of the gradient");
      });
      break;
    case 7:
      refusing([&] { encode_report(decode_report(text)); });
      break;
    default:
      refusing([&] { encode_state(decode_state(message_of(rest))); });
  }
  return 0;
}

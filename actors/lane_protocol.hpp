// Calls between a run and a lane that a node lends it: batches, sums and states as messages of the
// data connection. Numbers of the small parts travel as JSON, floating ones by their bits. What is
// read here comes from outside: everything that decides an index or an amount of memory is checked;
// what does not fit throws std::runtime_error.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/batches.hpp"
#include "messages/wire_message.hpp"
#include "model/loss.hpp"
#include "model/optimizer.hpp"
#include "model/replica_state.hpp"

namespace dflash {

namespace lane_call {
inline constexpr const char* build = "build";
inline constexpr const char* capture = "capture";
inline constexpr const char* accumulate = "accumulate";
inline constexpr const char* gradient = "gradient";
inline constexpr const char* update = "update";
inline constexpr const char* state = "state";
inline constexpr const char* load = "load";
}  // namespace lane_call

// What a target reads of a batch: k, tokens, documents. The tensors look into the batch.
wire_message capture_request(const batch& b);
batch batch_of_capture(const wire_message& m);

// A whole batch, then `hidden`. The tensors look into the batch.
struct accumulate_request {
  batch tokens;
  std::vector<at::Tensor> hidden;  // taps, then the last hidden state if has_last
  bool has_last = false;
  bool measured = false;
};
wire_message encode_accumulate(const batch& b,
                               std::vector<at::Tensor> hidden,
                               bool has_last,
                               bool measured);
accumulate_request decode_accumulate(wire_message m);

std::string encode_sums(const step_sums& sums);
step_sums decode_sums(const std::string& text);

// Elements of the flat gradient that are asked for.
struct gradient_range {
  int64_t begin = 0;
  int64_t count = 0;
};
std::string encode_range(const gradient_range& range);
// Of a gradient of `parameters` elements; never empty.
gradient_range decode_range(const std::string& text, int64_t parameters);

struct update_call {
  double weight_sum = 0;
  uint64_t step = 0;
  bool skip = false;
  bool own = false;  // the gradient is the lane's own: no tensor comes with it
};
std::string encode_update(const update_call& call);
update_call decode_update(const std::string& text);
std::string encode_report(const update_report& report);
update_report decode_report(const std::string& text);

wire_message encode_state(const replica_state& state);
replica_state decode_state(wire_message m);

}  // namespace dflash

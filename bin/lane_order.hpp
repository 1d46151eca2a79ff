// What a run tells a lane that a node lends it: all that decides its bits. The lane is built of it
// by the same functions as one of the run's own process.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/run_config.hpp"
#include "messages/node_greeting.hpp"
#include "messages/wire_message.hpp"
#include "model/compute_dtype.hpp"
#include "model/drafter_config.hpp"

namespace dflash {

struct lane_order {
  std::string purpose;  // "target" or "drafter"
  run_config config;    // resolved
  compute_dtype dtype = compute_dtype::fp32;
  drafter_config drafter;  // of simulated lanes: empty
  bool last = false;       // the last hidden state is wanted
  uint64_t total_steps = 0;
  std::string target_hash;  // content hash of the run's target
};
wire_message encode_order(const lane_order& order);
// Throws error or std::runtime_error for what cannot be.
lane_order decode_order(const wire_message& m);

struct order_answer {
  bool wants_model = false;  // no folder here has that content: send it
  // Names and shapes of a drafter's state, in its order.
  std::vector<std::pair<std::string, std::vector<int64_t>>> state;
};
std::string encode_answer(const order_answer& answer);
order_answer decode_answer(const std::string& text);

// Of this program on this machine; without name, lanes and port.
node_greeting own_greeting();

}  // namespace dflash

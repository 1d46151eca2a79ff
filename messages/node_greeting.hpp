// What a run and a node say to each other before anything else. All of it is JSON text, so that
// programs of other versions understand at least that they do not fit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

inline constexpr uint32_t node_protocol = 2;  // of control messages and of the calls to lanes
inline constexpr size_t max_greeting_bytes = 65536;  // more than this is not looked at

struct node_greeting {
  std::string version;  // of the program
  uint32_t protocol = node_protocol;
  std::string agreement;           // hash of what both sides must read alike
  std::string cpu;                 // kind of processor, as far as it decides bits
  std::string name;                // of a node; of a run its folder and process
  std::vector<std::string> lanes;  // that a node lends, "cpu:0"
};

std::string to_json(const node_greeting& greeting);
// Throws std::runtime_error for what is no greeting.
node_greeting parse_greeting(std::string_view text);

// Why these two cannot work together, both versions named; empty: they can. Neither the kind of
// processor nor the name counts.
std::string disagreement(const node_greeting& here, const node_greeting& there);

// What a run asks for: one lane for one purpose, until the asking actor is gone.
struct lend_request {
  node_greeting borrower;
  std::string lane;     // "cpu:0"
  std::string purpose;  // "target" or "drafter"
};
std::string to_json(const lend_request& request);
lend_request parse_lend_request(std::string_view text);

// Where the lane's calls go. Refused: why, and nothing else counts.
struct lend_answer {
  std::string refused;
  uint16_t port = 0;
  std::string token;  // good for one connection
};
std::string to_json(const lend_answer& answer);
lend_answer parse_lend_answer(std::string_view text);

}  // namespace dflash

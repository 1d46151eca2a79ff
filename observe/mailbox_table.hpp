// The table of `dflash inspect`: one line an actor. Plain structs in, text or JSON out.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "observe/jsonl.hpp"

namespace dflash {

struct mailbox_row {
  std::string actor;              // "target_forward 0"
  std::string state;              // "runs", "waits for drafter 1", "restarts", "retired: ..."
  std::uint64_t depth = 0;        // messages in the mailbox
  std::uint64_t bytes = 0;        // of tensors: waiting, on their way and in service
  std::uint64_t limit_bytes = 0;  // 0: its messages carry no tensors
  std::uint64_t peak_bytes = 0;
  double messages_per_second = 0.0;
  std::chrono::nanoseconds wait{};     // mean, in the mailbox
  std::chrono::nanoseconds service{};  // mean, in the handler
  std::uint64_t restarts = 0;
  std::uint64_t refused = 0;  // messages above the limit; a sound pipeline has none
};

std::string mailbox_table(std::span<const mailbox_row> rows);

json_object mailbox_json(const mailbox_row& row);

}  // namespace dflash

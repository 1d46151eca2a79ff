// The table of `dflash inspect`: one line an actor. Plain structs in, text or JSON out.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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
  std::chrono::nanoseconds wait_p50{}, wait_p99{}, service_p50{}, service_p99{};
  std::uint64_t restarts = 0;
  std::int64_t credits = -1;  // batches that it may still send or be sent; -1: it has no say
  std::vector<std::uint64_t> held = {};  // batches that are here
  std::uint64_t refused = 0;             // messages above the limit; a sound pipeline has none
  std::string where = {};                // "nodeB/cpu:0, answers"; empty: here
};

std::string mailbox_table(std::span<const mailbox_row> rows);

json_object mailbox_json(const mailbox_row& row);

/// Those whose name is `name` or begins with it and a blank ("target_forward": all of them).
std::vector<mailbox_row> rows_named(std::span<const mailbox_row> rows, const std::string& name);

/// Names by which sort_rows sorts.
const std::vector<std::string>& row_keys();

/// By name rising, by figures falling; stable. Throws error for an unknown key.
void sort_rows(std::vector<mailbox_row>& rows, const std::string& key);

}  // namespace dflash

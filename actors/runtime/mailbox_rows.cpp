#include "actors/runtime/mailbox_rows.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "observe/format.hpp"

namespace dflash {

std::vector<mailbox_row> rows_of(const std::vector<mailbox_report>& reports) {
  std::vector<mailbox_row> rows;
  for (const mailbox_report& m : reports) {
    mailbox_row row;
    row.actor = m.actor;
    row.state = m.state + " " + duration_text(std::chrono::nanoseconds(m.state_ns));
    row.depth = static_cast<uint64_t>(std::max<int64_t>(0, m.depth));
    row.bytes = m.bytes;
    row.limit_bytes = m.limit_bytes;
    row.peak_bytes = m.peak_bytes;
    if (m.alive_ns > 0)
      row.messages_per_second =
          static_cast<double>(m.handled) * 1e9 / static_cast<double>(m.alive_ns);
    if (m.handled > 0) {
      row.wait = std::chrono::nanoseconds(m.wait_ns / static_cast<int64_t>(m.handled));
      row.service = std::chrono::nanoseconds(m.service_ns / static_cast<int64_t>(m.handled));
    }
    row.restarts = m.restarts;
    row.refused = m.refused;
    row.wait_p50 = std::chrono::nanoseconds(m.wait_p50_ns);
    row.wait_p99 = std::chrono::nanoseconds(m.wait_p99_ns);
    row.service_p50 = std::chrono::nanoseconds(m.service_p50_ns);
    row.service_p99 = std::chrono::nanoseconds(m.service_p99_ns);
    row.credits = m.credits;
    row.held = m.held;
    row.where = m.where;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace dflash

#include "observe/mailbox_table.hpp"

#include <algorithm>

#include "observe/format.hpp"
#include "observe/table.hpp"

namespace dflash {

std::string mailbox_table(std::span<const mailbox_row> rows) {
  const bool any_refused =
      std::any_of(rows.begin(), rows.end(), [](const mailbox_row& r) { return r.refused > 0; });
  std::vector<text_table::column> columns = {{"actor", align::left},
                                             {"depth"},
                                             {"bytes"},
                                             {"limit"},
                                             {"peak"},
                                             {"msgs/s"},
                                             {"wait"},
                                             {"service"},
                                             {"restarts"}};
  if (any_refused) columns.push_back({"refused"});
  columns.push_back({"state", align::left});
  text_table table(std::move(columns));
  for (const mailbox_row& r : rows) {
    const bool tensors = r.limit_bytes > 0;
    std::vector<std::string> cells = {r.actor,
                                      std::to_string(r.depth),
                                      tensors ? bytes_text(r.bytes) : "-",
                                      tensors ? bytes_text(r.limit_bytes) : "-",
                                      tensors ? bytes_text(r.peak_bytes) : "-",
                                      count_text(r.messages_per_second),
                                      duration_text(r.wait),
                                      duration_text(r.service),
                                      std::to_string(r.restarts)};
    if (any_refused) cells.push_back(std::to_string(r.refused));
    cells.push_back(r.state);
    table.add_row(std::move(cells));
  }
  return table.text();
}

json_object mailbox_json(const mailbox_row& r) {
  json_object json;
  json.add("actor", r.actor)
      .add("state", r.state)
      .add("depth", r.depth)
      .add("bytes", r.bytes)
      .add("limit_bytes", r.limit_bytes)
      .add("peak_bytes", r.peak_bytes)
      .add("messages_per_second", r.messages_per_second)
      .add("wait_ns", r.wait.count())
      .add("service_ns", r.service.count())
      .add("restarts", r.restarts)
      .add("refused", r.refused);
  return json;
}

}  // namespace dflash

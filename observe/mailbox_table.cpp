#include "observe/mailbox_table.hpp"

#include <algorithm>

#include "config/error.hpp"
#include "observe/format.hpp"
#include "observe/table.hpp"

namespace dflash {

namespace {

// "3 4 5"; runs of three and more as "3-9".
std::string numbers_text(std::span<const std::uint64_t> numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (last < i + 2) last = i;
    text += (text.empty() ? "" : " ") + std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

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
                                             {"p99"},
                                             {"service"},
                                             {"p99"},
                                             {"credits"},
                                             {"restarts"}};
  if (any_refused) columns.push_back({"refused"});
  const bool any_away =
      std::any_of(rows.begin(), rows.end(), [](const mailbox_row& r) { return !r.where.empty(); });
  columns.push_back({"batches", align::left});
  if (any_away) columns.push_back({"where", align::left});
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
                                      duration_text(r.wait_p99),
                                      duration_text(r.service),
                                      duration_text(r.service_p99),
                                      r.credits < 0 ? "-" : std::to_string(r.credits),
                                      std::to_string(r.restarts)};
    if (any_refused) cells.push_back(std::to_string(r.refused));
    cells.push_back(r.held.empty() ? "-" : numbers_text(r.held));
    if (any_away) cells.push_back(r.where.empty() ? "-" : r.where);
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
      .add("wait_p50_ns", r.wait_p50.count())
      .add("wait_p99_ns", r.wait_p99.count())
      .add("service_ns", r.service.count())
      .add("service_p50_ns", r.service_p50.count())
      .add("service_p99_ns", r.service_p99.count())
      .add("credits", r.credits)
      .add("restarts", r.restarts)
      .add("refused", r.refused);
  const std::vector<std::int64_t> held(r.held.begin(), r.held.end());
  json.add("held", std::span<const std::int64_t>(held));
  if (!r.where.empty()) json.add("where", r.where);
  return json;
}

std::vector<mailbox_row> rows_named(std::span<const mailbox_row> rows, const std::string& name) {
  std::vector<mailbox_row> named;
  for (const mailbox_row& r : rows)
    if (r.actor == name || r.actor.starts_with(name + " ")) named.push_back(r);
  return named;
}

const std::vector<std::string>& row_keys() {
  static const std::vector<std::string> keys = {
      "actor", "depth", "bytes", "peak", "messages", "wait", "service", "restarts"};
  return keys;
}

void sort_rows(std::vector<mailbox_row>& rows, const std::string& key) {
  const auto falling = [&](auto figure) {
    std::stable_sort(rows.begin(), rows.end(), [&](const mailbox_row& a, const mailbox_row& b) {
      return figure(a) > figure(b);
    });
  };
  if (key == "actor")
    std::stable_sort(rows.begin(), rows.end(), [](const mailbox_row& a, const mailbox_row& b) {
      return a.actor < b.actor;
    });
  else if (key == "depth")
    falling([](const mailbox_row& r) { return r.depth; });
  else if (key == "bytes")
    falling([](const mailbox_row& r) { return r.bytes; });
  else if (key == "peak")
    falling([](const mailbox_row& r) { return r.peak_bytes; });
  else if (key == "messages")
    falling([](const mailbox_row& r) { return r.messages_per_second; });
  else if (key == "wait")
    falling([](const mailbox_row& r) { return r.wait_p99; });
  else if (key == "service")
    falling([](const mailbox_row& r) { return r.service_p99; });
  else if (key == "restarts")
    falling([](const mailbox_row& r) { return r.restarts; });
  else
    throw error("rows cannot be sorted by \"" + key + "\"", "--sort", "see --help");
}

}  // namespace dflash

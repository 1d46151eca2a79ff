#include "observe/trace.hpp"

#include <algorithm>
#include <cstdio>

#include "observe/jsonl.hpp"

namespace dflash {

namespace {

// Microseconds with three decimals, exactly.
std::string microseconds(std::int64_t ns) {
  char buffer[40];
  std::snprintf(buffer,
                sizeof buffer,
                "%lld.%03lld",
                static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return buffer;
}

}  // namespace

int trace::track_of(const std::string& name) {
  const auto [at, is_new] = tracks_.try_emplace(name, static_cast<int>(names_.size()) + 1);
  if (is_new) names_.push_back(name);
  return at->second;
}

void trace::slice(const std::string& track,
                  const std::string& name,
                  std::string_view category,
                  std::int64_t begin_ns,
                  std::int64_t end_ns,
                  std::int64_t k) {
  std::string text = "\"ph\":\"X\",\"pid\":1,\"tid\":" + std::to_string(track_of(track)) +
                     ",\"name\":" + json_string(name) + ",\"cat\":" + json_string(category) +
                     ",\"dur\":" + microseconds(std::max<std::int64_t>(0, end_ns - begin_ns));
  if (k >= 0) text += ",\"args\":{\"k\":" + std::to_string(k) + "}";
  events_.push_back({begin_ns, std::move(text)});
}

void trace::flow(arrow what, std::uint64_t k, const std::string& track, std::int64_t at_ns) {
  const char* phase = what == arrow::begins ? "s" : what == arrow::ends ? "f" : "t";
  std::string text = std::string("\"ph\":\"") + phase +
                     "\",\"pid\":1,\"tid\":" + std::to_string(track_of(track)) +
                     ",\"name\":\"batch\",\"cat\":\"batch\"" + ",\"id\":" + std::to_string(k);
  if (what == arrow::ends) text += ",\"bp\":\"e\"";  // bound to the slice that it is in
  events_.push_back({at_ns, std::move(text)});
}

void trace::counter(const std::string& name, std::int64_t at_ns, double value) {
  json_object args;
  args.add("value", value);
  events_.push_back(
      {at_ns, "\"ph\":\"C\",\"pid\":1,\"name\":" + json_string(name) + ",\"args\":" + args.text()});
}

std::string trace::json() const {
  std::vector<const event*> order;
  for (const event& e : events_) order.push_back(&e);
  std::stable_sort(order.begin(), order.end(), [](const event* a, const event* b) {
    return a->at_ns < b->at_ns;
  });
  const std::int64_t first = order.empty() ? 0 : order.front()->at_ns;
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"dflash\"}}";
  for (std::size_t t = 0; t < names_.size(); ++t) {
    const std::string id = std::to_string(t + 1);
    out += ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":" + id +
           ",\"name\":\"thread_name\",\"args\":{\"name\":" + json_string(names_[t]) + "}}";
  }
  for (const event* e : order)
    out += ",\n{\"ts\":" + microseconds(e->at_ns - first) + "," + e->text + "}";
  return out + "\n]}\n";
}

}  // namespace dflash

#include "actors/stage_record.hpp"

#include <algorithm>
#include <utility>

#include "actors/run_watch.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

constexpr uint64_t layers_in_group = 8;  // of a target, as layers_per_stage of model/target.hpp

// "attention, layers 8-15"; a drafter's groups are single layers.
std::string name_of(const std::string& kind, const stage_span& s) {
  std::string name = s.name;
  if (s.group < 0) return name;
  const auto group = static_cast<uint64_t>(s.group);
  if (kind != "target_forward") return name + " " + std::to_string(group);
  return name + ", layers " + std::to_string(group * layers_in_group) + "-" +
         std::to_string(group * layers_in_group + layers_in_group - 1);
}

// Where a stage stands in the profile: over all layers of a drafter together.
std::string path_of(const std::string& kind, const stage_span& s) {
  std::string path;
  for (const char* scope : {s.outer, s.inside})
    if (scope != nullptr) path += std::string(scope) + ": ";
  return path + (kind == "target_forward" ? name_of(kind, s) : std::string(s.name));
}

}  // namespace

stage_record::stage_record(std::optional<trace_options> trace, step_plan plan, uint32_t drafters)
    : trace_options_(std::move(trace)), plan_(plan), drafters_(drafters) {
  if (trace_options_)
    trace_options_->window.last = std::min(trace_options_->window.last, plan_.total_steps());
}

uint64_t stage_record::last_step() const {
  return trace_options_->window.last - 1;
}

bool stage_record::wants(const stage_report& m) const {
  if (!trace_options_ || written_) return false;
  const uint64_t step = m.step != stage_report::none ? m.step
                        : m.k != stage_report::none  ? plan_.step_of(m.k)
                                                     : stage_report::none;
  return step != stage_report::none && step + 1 >= trace_options_->window.first &&
         step <= last_step();
}

void stage_record::add(const stage_report& m, const mailbox_registry& registry) {
  const std::string kind = split_name(m.actor).kind;
  const auto book = [&](const std::string& stage, int64_t ns) {
    recent_.add(kind, stage, std::chrono::nanoseconds(ns));
    whole_.add(kind, stage, std::chrono::nanoseconds(ns));
  };
  for (const stage_span& s : m.spans) book(path_of(kind, s), s.end_ns - s.begin_ns);
  for (const wait_span& w : m.waits) book(w.what, w.end_ns - w.begin_ns);
  if (wants(m)) add_to_trace(m, registry);
}

void stage_record::add_to_trace(const stage_report& m, const mailbox_registry& registry) {
  const std::string kind = split_name(m.actor).kind;
  const int64_t k = m.k == stage_report::none ? -1 : static_cast<int64_t>(m.k);
  for (const wait_span& w : m.waits) trace_.slice(m.actor, w.what, "wait", w.begin_ns, w.end_ns);
  const stage_span* outermost = nullptr;
  for (const stage_span& s : m.spans) {
    trace_.slice(m.actor, name_of(kind, s), "stage", s.begin_ns, s.end_ns, k);
    if (s.inside == nullptr && s.whole) outermost = &s;
  }
  if (outermost == nullptr) return;
  add_flows(m, outermost->begin_ns + (outermost->end_ns - outermost->begin_ns) / 2);
  const int64_t now = outermost->end_ns;
  const auto count = [&](const std::string& name, double value) {
    const auto known = counted_.find(name);
    if (known != counted_.end() && known->second == value) return;
    counted_[name] = value;
    trace_.counter(name, now, value);
  };
  for (const mailbox_report& row : registry.rows()) {
    if (row.limit_bytes > 0) count(row.actor + " bytes", static_cast<double>(row.bytes));
    if (row.credits >= 0) count(row.actor + " credits", static_cast<double>(row.credits));
  }
}

void stage_record::add_flows(const stage_report& m, int64_t at_ns) {
  // Reports of different actors may arrive in another order than things happened: an arrow that
  // would point back in time is left out.
  if (m.k != stage_report::none) {
    const auto reached = reached_.find(m.k);
    if (reached == reached_.end()) {
      if (!begun_.insert(m.k).second) return;  // ended before: made again by a restarted actor
      trace_.flow(trace::arrow::begins, m.k, m.actor, at_ns);
      reached_.emplace(m.k, place{m.actor, at_ns});
    } else if (at_ns > reached->second.at_ns) {
      trace_.flow(trace::arrow::goes_on, m.k, m.actor, at_ns);
      reached->second = {m.actor, at_ns};
    }
    return;
  }
  if (m.step == stage_report::none || m.rank == stage_sink::nobody) return;
  const step_range range = plan_.step(m.step);
  for (auto k = reached_.lower_bound(range.first_k);
       k != reached_.end() && k->first < range.last_k;) {
    if (k->first % drafters_ != m.rank) {
      ++k;
      continue;
    }
    trace_.flow(trace::arrow::ends, k->first, m.actor, std::max(at_ns, k->second.at_ns));
    k = reached_.erase(k);
  }
  if (m.step == last_step()) ranks_at_end_.insert(m.rank);
}

void stage_record::write_trace(bool now) {
  if (!trace_options_ || written_ || trace_.empty()) return;
  if (!now && ranks_at_end_.size() < drafters_) return;
  written_ = true;
  // Batches that no commit was seen of: their arrows end where they were last.
  for (const auto& [k, last] : reached_) trace_.flow(trace::arrow::ends, k, last.actor, last.at_ns);
  write_file_atomically(trace_options_->file, trace_.json());
}

}  // namespace dflash

#include "observe/stage_profile.hpp"

#include <algorithm>
#include <bit>

#include "observe/format.hpp"
#include "observe/table.hpp"

namespace dflash {

// Values below 16 have a bucket each; above, the top five bits choose one of 16 per power of two.
std::size_t duration_histogram::bucket_of(std::uint64_t ns) {
  constexpr std::uint64_t linear = std::uint64_t{1} << sub_bits;
  if (ns < linear) return static_cast<std::size_t>(ns);
  const int shift = std::bit_width(ns) - 1 - sub_bits;
  return (static_cast<std::size_t>(shift + 1) << sub_bits) +
         static_cast<std::size_t>((ns >> shift) - linear);
}

std::uint64_t duration_histogram::middle_of(std::size_t bucket) {
  constexpr std::size_t linear = std::size_t{1} << sub_bits;
  if (bucket < linear) return bucket;
  const auto shift = static_cast<int>((bucket >> sub_bits) - 1);
  const std::uint64_t first = (linear + bucket % linear) << shift;
  return first + ((std::uint64_t{1} << shift) >> 1);
}

void duration_histogram::add(std::chrono::nanoseconds d) {
  const std::int64_t signed_ns = std::max<std::int64_t>(d.count(), 0);
  const auto ns = static_cast<std::uint64_t>(signed_ns);
  ++counts_[bucket_of(ns)];
  ++count_;
  total_ns_ += signed_ns;
  least_ns_ = std::min(least_ns_, ns);
  most_ns_ = std::max(most_ns_, ns);
}

void duration_histogram::merge(const duration_histogram& other) {
  for (std::size_t b = 0; b < buckets; ++b) counts_[b] += other.counts_[b];
  count_ += other.count_;
  total_ns_ += other.total_ns_;
  least_ns_ = std::min(least_ns_, other.least_ns_);
  most_ns_ = std::max(most_ns_, other.most_ns_);
}

std::chrono::nanoseconds duration_histogram::mean() const {
  if (count_ == 0) return {};
  return std::chrono::nanoseconds(total_ns_ / static_cast<std::int64_t>(count_));
}

std::chrono::nanoseconds duration_histogram::quantile(double q) const {
  if (count_ == 0) return {};
  // The smallest value that at least q of all values do not exceed.
  const double wanted = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_);
  std::uint64_t seen = 0;
  for (std::size_t b = 0; b < buckets; ++b) {
    seen += counts_[b];
    if (counts_[b] > 0 && static_cast<double>(seen) >= wanted)
      return std::chrono::nanoseconds(std::clamp(middle_of(b), least_ns_, most_ns_));
  }
  return longest();
}

void stage_profile::add(std::string_view stage, std::chrono::nanoseconds d) {
  auto at = stages_.find(stage);
  if (at == stages_.end()) at = stages_.try_emplace(std::string(stage)).first;
  at->second.add(d);
}

void stage_profile::merge(const stage_profile& other) {
  for (const auto& [name, histogram] : other.stages_) stages_[name].merge(histogram);
}

std::vector<stage_stats> stage_profile::stats() const {
  double sum = 0.0;
  for (const auto& [name, h] : stages_) sum += static_cast<double>(h.total().count());
  std::vector<stage_stats> all;
  for (const auto& [name, h] : stages_)
    all.push_back({.name = name,
                   .count = h.count(),
                   .total = h.total(),
                   .mean = h.mean(),
                   .p50 = h.quantile(0.5),
                   .p99 = h.quantile(0.99),
                   .share = sum > 0.0 ? static_cast<double>(h.total().count()) / sum : 0.0});
  std::stable_sort(all.begin(), all.end(), [](const stage_stats& a, const stage_stats& b) {
    return a.total > b.total;
  });
  return all;
}

std::string stage_profile::table() const {
  text_table table(
      {{"stage", align::left}, {"count"}, {"total"}, {"mean"}, {"p50"}, {"p99"}, {"share"}});
  for (const stage_stats& s : stats())
    table.add_row({s.name,
                   std::to_string(s.count),
                   duration_text(s.total),
                   duration_text(s.mean),
                   duration_text(s.p50),
                   duration_text(s.p99),
                   share_text(s.share)});
  return table.text();
}

void actor_profile::add(const std::string& kind,
                        const std::string& stage,
                        std::chrono::nanoseconds d) {
  kinds_[kind][stage].add(d);
}

// Parts of `whole` (its name with ": " behind it; empty: of nothing), each with its own parts.
void actor_profile::add_parts(const std::string& kind,
                              const stages& all,
                              const std::string& whole,
                              double sum,
                              std::vector<row>& out) {
  std::vector<const stages::value_type*> parts;
  for (const auto& stage : all)
    if (stage.first.starts_with(whole) && stage.first.size() > whole.size() &&
        stage.first.find(": ", whole.size()) == std::string::npos)
      parts.push_back(&stage);
  std::stable_sort(parts.begin(), parts.end(), [](const auto* a, const auto* b) {
    return a->second.total() > b->second.total();
  });
  std::size_t depth = 0;
  for (std::size_t at = 0; (at = whole.find(": ", at)) != std::string::npos; ++at) ++depth;
  for (const auto* part : parts) {
    const duration_histogram& h = part->second;
    const auto total = static_cast<double>(h.total().count());
    out.push_back({kind,
                   depth,
                   {.name = part->first.substr(whole.size()),
                    .count = h.count(),
                    .total = h.total(),
                    .mean = h.mean(),
                    .p50 = h.quantile(0.5),
                    .p99 = h.quantile(0.99),
                    .share = sum > 0 ? total / sum : 0.0}});
    add_parts(kind, all, part->first + ": ", sum, out);
  }
}

std::vector<actor_profile::row> actor_profile::rows() const {
  std::vector<row> all;
  for (const auto& [kind, stages] : kinds_) {
    double sum = 0;
    for (const auto& [name, h] : stages)
      if (name.find(": ") == std::string::npos) sum += static_cast<double>(h.total().count());
    add_parts(kind, stages, "", sum, all);
  }
  return all;
}

std::string actor_profile::table() const {
  text_table table({{"actor", align::left},
                    {"stage", align::left},
                    {"count"},
                    {"total"},
                    {"mean"},
                    {"p50"},
                    {"p99"},
                    {"share"}});
  std::string kind;
  for (const row& r : rows()) {
    const stage_stats& s = r.stats;
    table.add_row({r.kind == kind ? "" : r.kind,
                   std::string(2 * r.depth, ' ') + s.name,
                   std::to_string(s.count),
                   duration_text(s.total),
                   duration_text(s.mean),
                   duration_text(s.p50),
                   duration_text(s.p99),
                   share_text(s.share)});
    kind = r.kind;
  }
  return table.text();
}

}  // namespace dflash

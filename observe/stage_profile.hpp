// Times of stages by name: count, total, mean, median, 99th percentile, in fixed memory per stage.
// Plain values; the owner decides on threads.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

/// Counts durations in buckets whose width grows with the value: quantiles are right within 1/16.
class duration_histogram {
public:
  void add(std::chrono::nanoseconds d);  // negative ones count as 0
  void merge(const duration_histogram& other);

  std::uint64_t count() const { return count_; }
  std::chrono::nanoseconds total() const { return std::chrono::nanoseconds(total_ns_); }
  std::chrono::nanoseconds mean() const;
  std::chrono::nanoseconds quantile(double q) const;  // q in [0, 1]; 0 if empty
  std::chrono::nanoseconds longest() const { return std::chrono::nanoseconds(most_ns_); }

private:
  static constexpr int sub_bits = 4;  // 16 buckets per power of two
  static constexpr std::size_t buckets = (64 - sub_bits + 1) << sub_bits;
  static std::size_t bucket_of(std::uint64_t ns);
  static std::uint64_t middle_of(std::size_t bucket);

  std::array<std::uint32_t, buckets> counts_{};  // [bucket]
  std::uint64_t count_ = 0;
  std::int64_t total_ns_ = 0;
  std::uint64_t least_ns_ = UINT64_MAX;
  std::uint64_t most_ns_ = 0;
};

struct stage_stats {
  std::string name;
  std::uint64_t count = 0;
  std::chrono::nanoseconds total{};
  std::chrono::nanoseconds mean{};
  std::chrono::nanoseconds p50{};
  std::chrono::nanoseconds p99{};
  double share = 0.0;  // of the sum of all totals
};

// Stages by kind of actor: "train batch" stands alone, "train batch: anchors" is a part of it.
class actor_profile {
public:
  void add(const std::string& kind, const std::string& stage, std::chrono::nanoseconds d);
  void clear() { kinds_.clear(); }
  bool empty() const { return kinds_.empty(); }

  struct row {
    std::string kind;
    std::size_t depth = 0;  // 0: stands alone
    stage_stats stats;      // share: of the time of all that stands alone in its kind
  };
  std::vector<row> rows()
      const;  // by kind; largest total first, parts behind what they are part of
  std::string table() const;

private:
  using stages = std::map<std::string, duration_histogram>;  // by name
  static void add_parts(const std::string& kind,
                        const stages& all,
                        const std::string& whole,
                        double sum,
                        std::vector<row>& out);

  std::map<std::string, stages> kinds_;
};

class stage_profile {
public:
  void add(std::string_view stage, std::chrono::nanoseconds d);
  void merge(const stage_profile& other);
  void clear() { stages_.clear(); }
  bool empty() const { return stages_.empty(); }

  std::vector<stage_stats> stats() const;  // largest total first
  std::string table() const;

private:
  std::map<std::string, duration_histogram, std::less<>> stages_;
};

}  // namespace dflash

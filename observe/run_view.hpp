// Everything that can be seen of a running training at one moment, as plain values; and the same as
// JSON (the page) and in Prometheus' text form.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "observe/bottleneck.hpp"
#include "observe/mailbox_table.hpp"
#include "observe/metrics_line.hpp"

namespace dflash {

/// Upper bounds of the histograms of times, as later versions of CAF have them.
inline constexpr std::array<std::uint64_t, 9> time_bounds_ns = {10'000,
                                                                100'000,
                                                                500'000,
                                                                1'000'000,
                                                                10'000'000,
                                                                100'000'000,
                                                                500'000'000,
                                                                1'000'000'000,
                                                                5'000'000'000};

struct time_histogram {
  std::array<std::uint64_t, time_bounds_ns.size()> up_to{};  // [bound] how many were at most that
  std::uint64_t count = 0;
  double sum_s = 0;
};

struct actor_view {
  std::string kind;         // "target_forward"
  std::uint32_t index = 0;  // among its kind
  mailbox_row row;
  std::uint64_t handled = 0;
  bool alive = true;
  double busy = 0;  // share of the last seconds in which it computed
  std::vector<std::pair<std::string, double>> spent_s;  // by what it did or waited for
  time_histogram wait, service;
};

struct curve_point {
  std::uint64_t step = 0;
  double loss = 0;
  std::optional<double> accept_len;
};

struct log_line {
  double unix_time = 0;
  std::string level;
  std::string text;
};

struct sink_view {
  std::string name;
  std::uint64_t written = 0;
  std::uint64_t dropped = 0;
};

struct run_view {
  std::string run;  // its folder
  std::string node;
  std::uint64_t step = 0;
  std::uint64_t total_steps = 0;
  double uptime_s = 0;
  std::vector<actor_view> actors;
  std::vector<stage_load> stages;  // in the order of the flow
  std::optional<bottleneck> slowest;
  std::vector<scalar> latest;      // of the last step
  std::vector<curve_point> curve;  // thinned out
  std::vector<log_line> warnings;  // the last ones, oldest first
  std::vector<sink_view> sinks;
};

/// One object; what the page draws.
std::string status_json(const run_view& view);

/// Text exposition format, version 0.0.4.
std::string prometheus_text(const run_view& view);

}  // namespace dflash

// Texts with units: sizes, lanes, lengths in steps.
#include <charconv>
#include <cmath>
#include <limits>

#include "config/error.hpp"
#include "config/run_config.hpp"

namespace dflash {

std::optional<std::uint64_t> parse_bytes(const std::string& text) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (problem != std::errc{} || !(number >= 0.0)) return std::nullopt;
  std::string unit(rest, end);
  if (unit.starts_with(' ')) unit.erase(0, 1);
  struct named {
    const char* name;
    double size;
  };
  constexpr double ki = 1024.0;
  constexpr named units[] = {{"", 1},
                             {"B", 1},
                             {"kB", 1e3},
                             {"KB", 1e3},
                             {"MB", 1e6},
                             {"GB", 1e9},
                             {"TB", 1e12},
                             {"KiB", ki},
                             {"MiB", ki * ki},
                             {"GiB", ki * ki * ki},
                             {"TiB", ki * ki * ki * ki}};
  for (const named& u : units) {
    if (unit != u.name) continue;
    const double bytes = number * u.size;
    // doubles are exact up to 2^53 bytes; nothing larger is a size that anybody has
    if (bytes > 9007199254740992.0 || bytes != std::floor(bytes)) return std::nullopt;
    return static_cast<std::uint64_t>(bytes);
  }
  return std::nullopt;
}

std::string lane_name::local() const {
  return (cuda ? "cuda:" : sim ? "sim:" : "cpu:") + std::to_string(index);
}

bool is_node_name(const std::string& text) {
  constexpr const char* letters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !text.empty() && text.size() <= 63 && text.front() != '-' && text.front() != '.' &&
         text.find_first_not_of(letters) == std::string::npos;
}

lane_name parse_lane(const std::string& given) {
  const auto slash = given.find('/');
  const std::string node = slash == std::string::npos ? std::string() : given.substr(0, slash);
  const std::string text = slash == std::string::npos ? given : given.substr(slash + 1);
  const auto colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  lane_name lane{.cuda = kind == "cuda", .sim = kind == "sim", .index = 0, .node = node};
  const bool named = slash == std::string::npos || is_node_name(node);
  if (named && colon != std::string::npos && (kind == "cpu" || lane.cuda || lane.sim)) {
    const char* const first = text.data() + colon + 1;
    const char* const end = text.data() + text.size();
    const auto [rest, problem] = std::from_chars(first, end, lane.index);
    if (problem == std::errc{} && rest == end && lane.index >= 0 && lane.index < 4096 &&
        std::to_string(lane.index) == text.substr(colon + 1))
      return lane;
  }
  throw error(
      "\"" + given + "\" is not a lane",
      "layout",
      "lanes are \"cpu:0\", \"cpu:1\", ..., \"cuda:0\", ..., or simulated ones, \"sim:0\", ...; on "
      "another host \"NODE/cpu:0\", with the node's name from layout.nodes or --name");
}

bool is_simulated(const run_config& config) {
  return !config.layout.drafters.empty() && parse_lane(config.layout.drafters.front()).sim;
}

std::uint64_t step_span::of(std::uint64_t total) const {
  if (steps >= 0) return static_cast<std::uint64_t>(steps);
  return static_cast<std::uint64_t>(std::llround(share * static_cast<double>(total)));
}

void check_schedule(const optim_section& optim, std::uint64_t total_steps) {
  const std::uint64_t warmup = optim.warmup.of(total_steps);
  const std::string total = std::to_string(total_steps) + " optimizer steps";
  if (warmup > total_steps)
    throw error(
        "a warm-up of " + std::to_string(warmup) + " steps does not fit into a run of " + total,
        "optim.warmup",
        "give it as a share of the run, e.g. warmup = 0.04, or train for longer");
  // A decay given as a share is cut to what the warm-up leaves: rounding must not refuse a run.
  const bool counted = optim.schedule == "wsd" && optim.decay.steps >= 0;
  const std::uint64_t decay = counted ? optim.decay.of(total_steps) : 0;
  if (decay > total_steps - warmup)
    throw error("a warm-up of " + std::to_string(warmup) + " and a decay of " +
                    std::to_string(decay) + " steps do not fit into a run of " + total,
                "optim.decay",
                "give both as shares of the run, or train for longer");
}

}  // namespace dflash

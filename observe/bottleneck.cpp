#include "observe/bottleneck.hpp"

#include <cstdio>

#include "observe/format.hpp"

namespace dflash {

namespace {

constexpr double idle = 0.005;    // busy for less: it says nothing of what the stage could do
constexpr double even = 1.05;     // less headroom than that: none worth speaking of
constexpr double all_wait = 0.7;  // nobody is busier: something outside of the stages is slow

}  // namespace

std::optional<bottleneck> find_bottleneck(std::span<const stage_load> stages) {
  const stage_load* first = nullptr;
  const stage_load* second = nullptr;
  for (const stage_load& s : stages) {
    if (s.lanes == 0) continue;
    if (first == nullptr || s.busy > first->busy) {
      second = first;
      first = &s;
    } else if (second == nullptr || s.busy > second->busy) {
      second = &s;
    }
  }
  if (first == nullptr || first->busy <= 0) return std::nullopt;
  bottleneck b{.name = first->name, .busy = first->busy, .next = {}, .headroom = 0};
  if (second == nullptr) return b;
  b.next = second->name;
  if (second->busy >= idle) b.headroom = first->busy / second->busy;
  return b;
}

std::string bottleneck_text(const bottleneck& b) {
  std::string text = b.busy < all_wait ? "nobody is busy all the time; most so is " + b.name
                                       : b.name + " holds the others up";
  text += ": busy " + share_text(b.busy);
  if (b.next.empty()) return text;
  if (b.headroom == 0) return text + ", " + b.next + " does next to nothing";
  if (b.headroom < even) return text + ", " + b.next + " as much";
  char factor[32];
  std::snprintf(factor, sizeof factor, b.headroom < 10 ? "%.1f" : "%.0f", b.headroom);
  return text + ", " + b.next + " could do " + factor + " x as much";
}

}  // namespace dflash

#include "actors/runtime/seeded_faults.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <chrono>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "config/error.hpp"
#include "data/random.hpp"

namespace dflash {

namespace {

const std::vector<std::string> all_actors = {
    "target_forward", "postprocess", "loader", "dispatcher", "metrics", "drafter_train"};

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0;
  for (const char c : text) hash = hash * 131 + static_cast<uint64_t>(c);
  return hash;
}

template <class T>
T number(std::string_view text, std::string_view key, const std::string& where) {
  T value = {};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size())
    throw error(fmt::format("{}={} is no number", key, text), where);
  return value;
}

std::vector<std::string> names(std::string_view text, const std::string& where) {
  std::vector<std::string> all;
  std::istringstream in{std::string(text)};
  for (std::string name; std::getline(in, name, ',');) {
    bool known = false;
    for (const std::string& actor : all_actors) known = known || name.starts_with(actor);
    if (!known)
      throw error(fmt::format("there is no actor {} to fail", name),
                  where,
                  fmt::format("actors are {}", fmt::join(all_actors, ", ")));
    all.push_back(std::move(name));
  }
  return all;
}

}  // namespace

seeded_faults::seeded_faults(uint64_t seed,
                             std::vector<std::string> actors,
                             double share,
                             uint64_t most)
    : seed_(seed), actors_(std::move(actors)), share_(share), most_(most) {}

void seeded_faults::operator()(const std::string& actor, std::string_view point) {
  uint64_t passed = 0;
  {
    const std::lock_guard guard(mutex_);
    passed = passed_[actor]++;
  }
  const random_stream stream{seed_ + hash_of(actor), random_domain::sampling, passed};
  if (stream.u32(3) % 8 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(stream.u32(2) % 1000));
  if (stream.uniform(0) >= share_) return;
  for (const std::string& name : actors_)
    if (actor.starts_with(name)) die(actor, point);
}

void seeded_faults::die(const std::string& actor, std::string_view point) {
  {
    const std::lock_guard guard(mutex_);
    if (thrown_[actor] >= most_) return;
    ++thrown_[actor];
    points_.insert(actor.substr(0, actor.find(' ')) + ":" + std::string(point));
  }
  throw std::runtime_error(fmt::format("fault at {}", point));
}

uint64_t seeded_faults::thrown() const {
  const std::lock_guard guard(mutex_);
  uint64_t sum = 0;
  for (const auto& [actor, count] : thrown_) sum += count;
  return sum;
}

std::set<std::string> seeded_faults::points() const {
  const std::lock_guard guard(mutex_);
  return points_;
}

fault_points::function parse_seeded_faults(std::string_view text, const std::string& where) {
  uint64_t seed = 0, most = 5;
  double share = 0.02;
  std::vector<std::string> actors = all_actors;
  bool seeded = false;
  std::istringstream in{std::string(text)};
  for (std::string word; in >> word;) {
    const size_t at = word.find('=');
    const std::string key = word.substr(0, at);
    const std::string value = at == std::string::npos ? std::string() : word.substr(at + 1);
    if (key == "seed") {
      seed = number<uint64_t>(value, key, where);
      seeded = true;
    } else if (key == "share") {
      share = number<double>(value, key, where);
    } else if (key == "most") {
      most = number<uint64_t>(value, key, where);
    } else if (key == "actors") {
      actors = names(value, where);
    } else {
      throw error(fmt::format("{} is not known", word),
                  where,
                  "e.g. \"seed=1 share=0.02 most=5 actors=drafter_train,postprocess\"");
    }
  }
  if (!seeded) throw error("no seed", where, "e.g. \"seed=1\"");
  if (!(share >= 0 && share <= 1)) throw error("share is not from 0 to 1", where);
  auto faults = std::make_shared<seeded_faults>(seed, std::move(actors), share, most);
  return [faults](const std::string& actor, std::string_view point) { (*faults)(actor, point); };
}

}  // namespace dflash

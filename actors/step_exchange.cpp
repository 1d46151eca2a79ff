#include "actors/step_exchange.hpp"

namespace dflash {

void step_exchange::arrived(const step_part& part) {
  if (part.attempt != attempt_) return;
  auto& parts = parts_[part.step];
  parts.resize(drafters_);
  parts.at(part.rank) = part;
}

std::vector<step_part> step_exchange::complete(uint64_t step) const {
  std::vector<step_part> all;
  const auto found = parts_.find(step);
  if (found == parts_.end()) return all;
  for (const auto& part : found->second) {
    if (!part) return {};
    all.push_back(*part);
  }
  return all;
}

void step_exchange::begin(uint32_t attempt) {
  attempt_ = attempt;
  parts_.clear();
}

}  // namespace dflash

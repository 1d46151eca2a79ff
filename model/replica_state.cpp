#include "model/replica_state.hpp"

#include <fmt/format.h>

#include "config/error.hpp"

namespace dflash {

replica_state state_of(drafter_trainer& trainer) {
  replica_state state;
  const auto add = [&](const std::string& prefix, const drafter_weights& weights) {
    for (const auto& [name, tensor] : named_tensors(weights))
      state.tensors.emplace_back(prefix + name, *tensor);
  };
  add("master.", trainer.masters());
  if (const drafter_weights* average = trainer.average()) add("ema.", *average);
  for (auto& [name, tensor] : trainer.state().state()) state.tensors.emplace_back(name, tensor);
  state.updates = trainer.state().updates();
  return state;
}

void copy_state(const replica_state& from, drafter_trainer& to) {
  const replica_state into = state_of(to);
  if (from.tensors.size() != into.tensors.size())
    throw error(fmt::format("a replica's state has {} tensors instead of {}",
                            from.tensors.size(),
                            into.tensors.size()),
                "drafter");
  for (size_t i = 0; i < into.tensors.size(); ++i) {
    const auto& [name, source] = from.tensors[i];
    const auto& [wanted, target] = into.tensors[i];
    if (name != wanted || source.sizes() != target.sizes())
      throw error("a replica's state has " + name + " in the place of " + wanted, "drafter");
    target.copy_(source);
  }
  to.state().set_updates(from.updates);
  to.refresh_compute();
  to.clear_gradient();
}

void restart_from(const drafter_weights& masters, drafter_trainer& trainer) {
  const auto fill = [&](const drafter_weights& weights) {
    const auto from = named_tensors(masters);
    const auto to = named_tensors(weights);
    for (size_t i = 0; i < to.size(); ++i) to[i].second->copy_(*from.at(i).second);
  };
  fill(trainer.masters());
  if (const drafter_weights* average = trainer.average()) fill(*average);
  for (const auto& [name, moment] : trainer.state().state()) moment.zero_();
  trainer.state().set_updates(0);
  trainer.refresh_compute();
  trainer.clear_gradient();
}

}  // namespace dflash

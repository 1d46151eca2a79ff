// Which drafters have the state of the open step, and how those that died get it back. Plain
// struct.
//
//   trains --death--> lost --back-off is over--> ready --spawned--> joins --state is there-->
//   trains
//
// They join in rounds, between the commit of a step and the go of the next: all that train hold
// their exchange and show their state; then those that are ready are spawned with the state of one
// of them. A donor that dies while it is copied takes its copies with it. When nobody trains or
// joins any more, one goes back to a checkpoint, and the others take the state from that one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "messages/messages.hpp"

namespace dflash {

class replica_book {
public:
  explicit replica_book(uint32_t drafters) : replicas_(drafters) {}

  // A drafter has died. Returns those whose copy of its state is void: they must go too.
  std::vector<uint32_t> lost(uint32_t rank);
  void ready(uint32_t rank);

  bool all_train() const { return count(condition::trains) == replicas_.size(); }
  bool trains(uint32_t rank) const { return replicas_.at(rank).now == condition::trains; }
  bool nobody_left() const;
  // Somebody could join, and no round is under way.
  bool wants_round() const;
  // Opens a round; returns those that have to hold.
  std::vector<uint32_t> begin_round(uint32_t attempt);
  void held(const replica_held& m);
  // All that train have held: those that may join now, with this state; they count as joining.
  struct joining {
    std::vector<uint32_t> ranks;
    std::shared_ptr<const replica_state> state;
    uint32_t donor = 0;
  };
  std::optional<joining> join();
  // Nobody is left: who goes back to a checkpoint, if its back-off is over.
  std::optional<uint32_t> restore();
  // Its state is there. False: the copy is void, it is about to end.
  bool joined(uint32_t rank);

private:
  enum class condition : uint8_t { trains, lost, ready, joins, ends };
  struct replica {
    condition now = condition::trains;
    std::optional<uint32_t> donor;               // that it copies from
    std::shared_ptr<const replica_state> state;  // shown in this round
  };
  size_t count(condition what) const;

  std::vector<replica> replicas_;  // [rank]
  std::optional<uint32_t> round_;  // attempt of the round that is open
};

}  // namespace dflash

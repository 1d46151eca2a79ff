// The functions that lanes of another host are to the actors of this process: each is a call. What
// comes back is checked against what this run expects.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/drafter_work.hpp"
#include "actors/hidden_shape.hpp"
#include "actors/remote_lane.hpp"
#include "actors/target_forward.hpp"
#include "messages/wire_message.hpp"
#include "model/trainer_snapshot.hpp"

namespace dflash {

// `simulated`: no hidden states travel.
capture_function remote_capture(std::shared_ptr<remote_lane> lane,
                                hidden_shape shape,
                                bool simulated);

struct remote_drafter_options {
  std::shared_ptr<remote_lane> lane;
  // Names and shapes of the state, in its order; fp32. Empty: simulated.
  std::vector<std::pair<std::string, std::vector<int64_t>>> state;
  int64_t parameters = 0;  // P
  // The only drafter of the run: nobody here reads its gradient, so that it stays there.
  bool alone = false;
  // Elements of the gradient that are asked for at once (8 MiB): a piece travels while the rest is
  // still computed, and many pieces ask often.
  int64_t bucket = int64_t{2} << 20;
  bool simulated = false;
  // The state to go back to, with its committed steps: of the newest good checkpoint, or of the
  // start. Made here and kept only as long as it takes to send it.
  std::function<std::pair<std::shared_ptr<drafter_trainer>, uint64_t>()> restore;
  // Of rank 0: an empty snapshot of the right shape, and what writes it.
  std::function<trainer_snapshot()> blank;
  checkpoint_writer write;
};

drafter_work remote_drafter(remote_drafter_options options);

}  // namespace dflash

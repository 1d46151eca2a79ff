// Lanes of a node: built for the run that borrows them, as that run would build its own.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "actors/node.hpp"

namespace dflash {

struct node_lanes_options {
  std::filesystem::path model;  // in the place of the run's target.path; empty: that
  std::filesystem::path cache;  // of models that runs have sent
};

// The first call of a lane says what it is to be (bin/lane_order.hpp). Lanes of one model share its
// weights, and drop them with the last of them.
lane_maker make_node_lanes(node_lanes_options options);

}  // namespace dflash

// CUDA graphs behind device/recording.hpp.
#pragma once

#include "device/recording.hpp"

namespace dflash::cuda {

// Graphs of one thread, on the device and stream that are current when it records; they share one
// pool of memory, so they must be replayed in that thread, one after another on that stream.
record_function make_graph_recorder();

}  // namespace dflash::cuda

// One lane of the frozen target: asks for a batch whenever it has a free capture slot, runs the
// target on it, hands the states to its postprocess. Detached; the weights are shared by all lanes
// of a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/hidden_shape.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "data/batches.hpp"
#include "device/lane_streams.hpp"
#include "device/slot_pool.hpp"

namespace dflash {

// Taps and, where asked, the last hidden states of one batch: hidden_shape.tensors() tensors [T,
// Ht]. A pure function of the batch (for a fixed number of threads).
using capture_function = std::function<std::vector<at::Tensor>(const batch&)>;

struct target_options {
  capture_function capture;
  std::function<void()> begin;  // of a life, before it asks for work; blocks, throws; may be empty
  hidden_shape shape;
  std::shared_ptr<slot_pool> slots;
  int64_t threads = 1;
  at::Device device = at::kCPU;  // where capture computes, and the slots have their memory
  bool profile = false;
  std::shared_ptr<stage_timer> inner;  // of the stages inside capture; null: none are known
};

struct target_state {
  static inline const char* name = "target_forward";
  target_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  bool asking = false;

  // What other threads let go of afterwards is not in use any more.
  ~target_state() { wait_for(options.device); }
};

target_actor spawn_target(caf::actor_system& system,
                          runs_as how,
                          actor_identity identity,
                          target_options options);

}  // namespace dflash

// One replica of the drafter: trains its batches in order of k, exchanges gradients with the other
// replicas, updates when the coordinator says go. Detached.
//
// A step at rank r: own batches -> step_part to all ranks -> all parts here: sum in rank order ->
// step_reduced to the coordinator -> step_go from it -> update -> step_committed. Until the go
// nothing of the step has changed weights or moments, and the gradient that step_part hands around
// is left alone.
//
// A later life begins with the state of a replica that lives, or with that of a checkpoint, and
// without batches. Those that live hold their exchange of gradients until it is there, and keep
// their own gradient of the open step: its part is exchanged again, as a new attempt.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/drafter_work.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "actors/step_exchange.hpp"
#include "actors/training_order.hpp"
#include "device/lane_streams.hpp"
#include "device/slot_pool.hpp"

namespace dflash {

// How a life of a drafter begins.
struct life_of_drafter {
  uint32_t number = 0;
  uint64_t step = 0;  // the open one
  uint32_t attempt = 0;
  std::shared_ptr<const replica_state> state;  // to be taken over; null: it has it
  uint32_t donor = 0;                          // whose state that is
  bool restore = false;                        // or from a checkpoint, which says the step
};

struct drafter_options {
  uint32_t drafters = 1;  // M
  std::optional<step_plan> plan;
  drafter_work work;
  life_of_drafter life;
  std::shared_ptr<slot_pool> slots;  // its mailbox limit
  uint64_t metrics_every = 8;        // batches, by k
  int64_t threads = 1;
  // Its own, then those of the other drafters, whose gradients it reads; empty: all is on the CPU.
  std::vector<at::Device> devices;
  bool profile = false;

  at::Device device() const { return devices.empty() ? at::Device(at::kCPU) : devices.front(); }
};

struct drafter_state {
  static inline const char* name = "drafter_train";
  drafter_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  std::optional<training_order> order;
  uint32_t credit_epoch = 0;          // one for each dispatcher
  bool stepping = false;              // a next_atom is on its way
  bool held = false;                  // exchanges nothing until all drafters are there
  bool part_sent = false;             // of the open step, under the present attempt
  double weight_sum = 0;              // of own batches of the open step
  std::vector<batch_report> reports;  // of them
  std::optional<step_exchange> exchange;
  at::Tensor sum;      // [P] fp32 of all ranks; M = 1: not used
  at::Tensor reduced;  // of the open step, once all parts are here
  double reduced_weight = 0;

  // What other threads let go of afterwards is not in use any more.
  ~drafter_state() { wait_for(options.device()); }
};

drafter_actor spawn_drafter(caf::actor_system& system,
                            runs_as how,
                            actor_identity identity,
                            drafter_options options);

}  // namespace dflash

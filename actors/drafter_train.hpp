// One replica of the drafter: trains its batches in order of k, exchanges gradients with the other
// replicas, updates when the coordinator says go. Detached.
//
// A step at rank r: own batches -> step_part to all ranks -> all parts here: sum in rank order ->
// step_reduced to the coordinator -> step_go from it -> update -> step_committed. Until the go
// nothing of the step has changed weights or moments, and the gradient that step_part hands around
// is left alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/drafter_work.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "actors/training_order.hpp"
#include "device/slot_pool.hpp"

namespace dflash {

struct drafter_options {
  uint32_t drafters = 1;  // M
  std::optional<step_plan> plan;
  uint64_t first_step = 0;
  drafter_work work;
  std::shared_ptr<slot_pool> slots;  // its mailbox limit
  uint64_t metrics_every = 8;        // batches, by k
  int64_t threads = 1;
  bool profile = false;
};

struct drafter_state {
  static inline const char* name = "drafter_train";
  drafter_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;
  std::optional<training_order> order;
  uint32_t credit_epoch = 0;                 // one for each dispatcher
  bool stepping = false;                     // a next_atom is on its way
  bool part_sent = false;                    // of the open step
  double weight_sum = 0;                     // of own batches of the open step
  std::map<uint64_t, batch_report> reports;  // by k: metrics may not have written them
  std::map<uint64_t, std::vector<std::optional<step_part>>> parts;  // by step, then [rank]
  at::Tensor sum;      // [P] fp32 of all ranks; M = 1: not used
  at::Tensor reduced;  // of the open step, once all parts are here
  double reduced_weight = 0;
};

drafter_actor spawn_drafter(caf::actor_system& system,
                            runs_as how,
                            actor_identity identity,
                            drafter_options options);

}  // namespace dflash

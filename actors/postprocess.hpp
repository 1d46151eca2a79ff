// Between a producer of hidden states and the drafters: checks that all values are finite, keeps
// whole rows for later epochs, adds noise, counts what the drafter reads, and moves the states into
// a slot of the drafter, whose room was reserved before the producer began. On the CPU nothing is
// copied; between devices one copy goes straight into the slot. Detached, one per producer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/hidden_shape.hpp"
#include "actors/runtime/metered.hpp"
#include "actors/runtime/stage_sink.hpp"
#include "data/batches.hpp"
#include "data/hidden_store.hpp"
#include "device/lane_streams.hpp"
#include "device/slot_pool.hpp"

namespace dflash {

struct postprocess_options {
  hidden_shape shape;
  at::ScalarType drafter_dtype = at::kFloat;  // taps are cast to it where they differ
  std::shared_ptr<hidden_store> store;        // null: not kept
  double noise = 0;                           // taps + U(-noise, noise); 0: none
  uint64_t seed = 0;                          // of the noise
  int64_t window = 0;  // widest of the drafter's layers, tokens; 0: a full one
  int64_t block_size = 0;
  // All values finite? all_finite, but for simulated lanes.
  std::function<bool(const std::vector<at::Tensor>&)> finite;
  // Of the producer, then of the drafters; empty: all is on the CPU.
  std::vector<at::Device> devices;
  bool profile = false;
};

struct postprocess_state {
  static inline const char* name = "postprocess";
  postprocess_options options;
  std::shared_ptr<const pipeline_links> links;
  stage_sink stages;

  ~postprocess_state() {
    for (const at::Device& device : options.devices) wait_for(device);
  }
};

// All values finite? min and max alone decide: NaN spreads to both. On a device the host waits for
// the answer once.
bool all_finite(const std::vector<at::Tensor>& tensors);

// Adds U(-amplitude, amplitude) to each tap, from counters keyed by (seed, k): the same for a batch
// that is made again, the same bits on every device. taps [nT] x [T, Ht], fp32 or bf16, contiguous,
// in place.
void add_noise(std::vector<at::Tensor>& taps, double amplitude, uint64_t seed, uint64_t k);

// Bytes of the rows that some anchor sees (taps) or the loss needs (last hidden states).
uint64_t visible_bytes(const postprocess_options& options, const batch& tokens);

postprocess_actor spawn_postprocess(caf::actor_system& system,
                                    runs_as how,
                                    actor_identity identity,
                                    postprocess_options options);

}  // namespace dflash

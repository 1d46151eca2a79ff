// How much memory models take, from their shapes alone: what stays for the whole run, and what a
// pass needs at its peak. Follows what target_load, target_run, drafter_step and drafter_pass
// allocate; tests compare it with running processes.
#pragma once

#include <cstdint>

#include "config/run_config.hpp"
#include "model/compute_dtype.hpp"
#include "model/drafter_config.hpp"
#include "model/target_config.hpp"

namespace dflash {

struct target_memory {
  uint64_t parameters = 0;   // stored ones
  uint64_t weights = 0;      // layers, as they are multiplied
  uint64_t embedding = 0;    // and the head in plain form, once if they are tied
  uint64_t packed_head = 0;  // 0 where nothing is packed
  uint64_t activations = 0;  // of one capture of T tokens, without what is captured
};

// `packed`: lanes of a CPU. `layers` false: only what the drafter borrows.
target_memory memory_of(const target_config& config,
                        compute_dtype dtype,
                        int64_t row_tokens,
                        bool packed,
                        bool layers = true);

struct drafter_memory {
  uint64_t parameters = 0;
  uint64_t masters = 0;      // fp32
  uint64_t moments = 0;      // fp32, of the optimizer
  uint64_t gradient = 0;     // fp32
  uint64_t compute = 0;      // copies in the compute dtype; 0 in fp32
  uint64_t average = 0;      // fp32, with optim.ema
  uint64_t draft_head = 0;   // rows of the draft vocabulary, plain and packed; 0 without one
  uint64_t activations = 0;  // kept from forward to backward, and what backward adds at its peak
  uint64_t head_chunk = 0;   // logits of one chunk, of the teacher too where a term needs them
  uint64_t update = 0;       // what an update needs besides (Muon)

  uint64_t kept() const { return masters + moments + gradient + compute + average + draft_head; }
  // The larger of what a batch and an update need.
  uint64_t passing() const;
};

// All `anchors` valid and all `row_tokens` seen.
drafter_memory memory_of(const drafter_config& config,
                         const loss_section& loss,
                         const optim_section& optim,
                         compute_dtype dtype,
                         int64_t row_tokens,
                         int64_t anchors,
                         bool packed);

// Of what evaluations read.
struct evaluation_shapes {
  bool rows = false;              // of held-out text
  int64_t prompts = 0;            // answered at once
  int64_t prompt_tokens = 0;      // of those prompts together
  int64_t longest = 0;            // tokens of one of them with its answer
  int64_t new_tokens = 0;         // of an answer
  uint64_t kept_bytes = 0;        // hidden states that stay from one evaluation to the next
  uint64_t made_again_bytes = 0;  // the largest that find no room there
};

// Of an evaluation while training, beside the hidden states.
struct evaluation_memory {
  uint64_t drafter = 0;  // copies of its weights: as they decode, and as they are scored
  uint64_t loading = 0;  // the checkpoint as it was read, until the copies are made
  uint64_t work = 0;     // the most that one piece of work needs: a row, answers, a walk

  uint64_t passing() const { return loading > work ? loading : work; }
};

// `file_bytes`: of the weights in the checkpoint.
evaluation_memory memory_of(const target_config& target,
                            const drafter_config& drafter,
                            const loss_section& loss,
                            compute_dtype dtype,
                            int64_t row_tokens,
                            int64_t anchors,
                            uint64_t file_bytes,
                            const evaluation_shapes& shapes);

}  // namespace dflash

// Forward and backward pass of the drafter's body over one batch (dflash.md 2.2-2.4): taps and
// block tokens in, hidden rows of slots 1..B-1 out, and back to gradients of the weights. By hand,
// no autograd; ATen operators and the kernels of device/kernels, so any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "data/batches.hpp"
#include "device/kernels/block_attention.hpp"
#include "device/kernels/norms.hpp"
#include "device/stage_timer.hpp"
#include "model/drafter.hpp"

namespace dflash {

// What a batch says to the body: tokens, positions, who sees whom.
struct pass_plan {
  int64_t blocks = 0;               // A
  int64_t context = 0;              // C: leading context rows that some block may see, of T
  int64_t positions = 0;            // largest position + 1
  at::Tensor block_ids;             // [A B] int32: anchor token, then mask tokens
  at::Tensor block_positions;       // [A B] int32 within the document
  at::Tensor query_positions;       // [A (B-1)] int32: slots 1..B-1
  at::Tensor context_positions;     // [C] int32
  kernel::attention_layout layout;  // without window, causality and first_slot, which are a layer's
};
// The batch without its empty anchor slots: less work where shapes need not stay fixed.
batch with_valid_anchors(const batch& tokens);
// Tensors on `device`.
pass_plan plan_pass(const drafter_config& config, const batch& tokens, const at::Device& device);

// What backward needs of one layer. N = A B rows; the last layer works on N' = A (B-1) rows from
// its queries on, since slot 0 has no output.
struct layer_state {
  at::Tensor input;          // [N, H] residual stream
  at::Tensor normed;         // [N, H]
  at::Tensor queries_in;     // [N or N', H] rows of normed that ask
  at::Tensor q_raw, kv_raw;  // [N or N', nh hd], [N, 2 nkv hd]: k then v
  at::Tensor context_kv;     // [C, 2 nkv hd]
  kernel::attention_layout layout;
  kernel::attention_input attention;  // q and k after head norm and rotation
  kernel::attention_output attended;
  at::Tensor middle;         // [N or N', H] residual after attention
  at::Tensor middle_normed;  // [N or N', H]
  at::Tensor gate_up;        // [N or N', 2 I]
};

struct pass_state {
  at::Tensor context_raw;  // [C, H] fp32: fc of the taps
  at::Tensor context;      // [C, H] after hidden_norm
  std::vector<layer_state> layers;
  at::Tensor output;  // [N', H] residual after the last layer
  at::Tensor hidden;  // [N', H] after the final norm
};

class drafter_body {
public:
  // weights: matrices in the compute dtype, norms fp32, views of one flat buffer in the order of
  // named_tensors (neighbours such as k_proj and v_proj are multiplied as one matrix). Read at each
  // pass, not copied.
  drafter_body(const drafter_config& config, const drafter_weights& weights)
      : config_(config), weights_(weights) {}

  // taps: nT x [>= C, Ht]; embedding [V, H].
  pass_state forward(const pass_plan& plan,
                     const std::vector<at::Tensor>& taps,
                     const at::Tensor& embedding,
                     stage_timer& timer);

  // d_hidden [N', H]. Adds to `gradient` (fp32, views of one flat buffer), or overwrites its
  // matrices
  // (`overwrite`: norms must be zero then). Frees the state as it goes. `layer_done`, where given,
  // hears of each layer whose gradients are complete, from the last to the first.
  void backward(const pass_plan& plan,
                const std::vector<at::Tensor>& taps,
                pass_state& state,
                const at::Tensor& d_hidden,
                drafter_weights& gradient,
                bool overwrite,
                stage_timer& timer,
                const std::function<void(size_t)>& layer_done = {});

private:
  void layer_forward(size_t i, const pass_plan& plan, pass_state& state, stage_timer& timer);
  // Takes the gradient at the layer's output, returns it at its input; adds to d_context [C, H].
  at::Tensor layer_backward(size_t i,
                            const pass_plan& plan,
                            pass_state& state,
                            at::Tensor d_output,
                            at::Tensor& d_context,
                            drafter_weights& gradient,
                            bool overwrite,
                            stage_timer& timer);
  void grow_rope(int64_t positions, const at::Tensor& like);

  const drafter_config& config_;
  const drafter_weights& weights_;
  kernel::rope_table rope_;
};

}  // namespace dflash

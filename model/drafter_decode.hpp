#pragma once
// DFlash drafter for inference (dflash.md 2.2, 6.1): frozen, packed weights and a cache of the
// context's keys and values for every draft layer. Same mathematics as the training forward, other
// bookkeeping.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/kernels/norms.hpp"
#include "device/packed_linear.hpp"
#include "model/drafter.hpp"
#include "model/drafter_config.hpp"
#include "model/proposer.hpp"
#include "model/target.hpp"

namespace dflash {

/// Immutable after construction and safe to share between threads. Holds copies of `weights` in the
/// target's compute dtype and on its device (masters in fp32, on the CPU, may be given) and shares
/// embedding and head with the target.
class draft_model {
public:
  /// Throws `dflash::error` if drafter and target do not belong together: see check_drafter_fits
  /// (drafter_config.hpp).
  draft_model(drafter_config config,
              const drafter_weights& weights,
              std::shared_ptr<const target> of);

  const drafter_config& config() const { return config_; }
  const target& of() const { return *target_; }

  struct layer {
    at::Tensor input_norm;      // [H]
    packed_linear qkv;          // [(nh + 2·nkv)·hd, H], block tokens
    at::Tensor q_norm, k_norm;  // [hd]
    packed_linear o;            // [H, nh·hd]
    at::Tensor post_norm;       // [H]
    packed_linear gate_up;      // [2·I, H]
    packed_linear down;         // [H, I]
  };
  const std::vector<layer>& layers() const { return layers_; }
  const packed_linear& fc() const { return fc_; }                 // [H, nT·Ht]
  const at::Tensor& hidden_norm() const { return hidden_norm_; }  // [H]
  const packed_linear& context_kv() const { return context_kv_; }  // [L·2·nkv·hd, H]: k0 v0 k1 v1 …
  const at::Tensor& norm() const { return norm_; }                 // [H]
  const packed_linear& head() const { return head_; }              // [Vd, H]

private:
  drafter_config config_;
  std::shared_ptr<const target> target_;
  std::vector<layer> layers_;
  packed_linear fc_, context_kv_, head_;
  at::Tensor hidden_norm_, norm_;
};

/// One drafter at work: context K/V caches for some sequences. Batches ragged requests.
class drafter_proposer final : public proposer {
public:
  explicit drafter_proposer(std::shared_ptr<const draft_model> model);

  int64_t max_drafts() const override { return model_->config().block_size - 1; }
  std::span<const int> taps() const override { return model_->config().taps; }
  void start(int64_t slots, int64_t capacity) override;
  void reset(int64_t slot) override;
  void commit(std::span<const committed_rows> rows, const std::vector<at::Tensor>& taps) override;

  /// Always runs whole blocks of B slots, as in training (slots past a limit are dropped
  /// afterwards; plain RoPE needs no table, so positions past max_position_embeddings are computed
  /// like any other).
  std::vector<std::vector<int32_t>> propose(std::span<const draft_request> requests) override;

  /// Final-normed hidden states of all slots of the requested blocks, [requests·B, H]: what the
  /// head gets. For tests and metrics.
  at::Tensor block_hidden(std::span<const draft_request> requests);

private:
  struct block_rows;  // rows of the blocks at work and where they belong
  block_rows lay_out(std::span<const draft_request> requests) const;
  at::Tensor attend(size_t layer, const block_rows& rows, const at::Tensor& qkv) const;

  std::shared_ptr<const draft_model> model_;
  int64_t slots_ = 0;
  int64_t capacity_ = 0;
  std::vector<int64_t> lengths_;    // [slot] committed positions
  kernel::rope_table rope_;         // capacity + B positions
  std::vector<at::Tensor> keys_;    // [layer] [slots · capacity, nkv, hd], normed and rotated
  std::vector<at::Tensor> values_;  // [layer] [slots · capacity, nkv, hd]
};

}  // namespace dflash

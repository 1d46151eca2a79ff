// The frozen target model of any family (model/families): capture of hidden states for training,
// cached ragged forward for generation and verification. Immutable after loading: one copy per
// process and device serves any number of threads, each of which has called at::set_num_threads for
// itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/packed_linear.hpp"
#include "device/stage_timer.hpp"
#include "model/compute_dtype.hpp"
#include "model/kv_cache.hpp"
#include "model/rope.hpp"
#include "model/target_config.hpp"
#include "model/target_layers.hpp"

namespace dflash {

// What load() reads: a run on captured hidden states needs no layers, only what the drafter borrows
// (embedding, head, final norm) and what tells the target from another.
// Layers that one stage of a profile stands for: group g has layers 8 g to 8 g + 7.
inline constexpr int64_t layers_per_stage = 8;

enum class target_parts { all, borrowed };

class target {
public:
  // Reads a Hugging Face folder, strictly. Throws dflash::error (file, key or tensor). On another
  // device than the CPU all of it runs in ATen operators: results stay there, in the order of the
  // calling thread's current stream, and the host does not wait (but for experts). With
  // target_parts::borrowed there are no layers: only logits and normed may be called.
  static std::shared_ptr<const target> load(const std::filesystem::path& folder,
                                            compute_dtype dtype,
                                            at::Device device = at::kCPU,
                                            target_parts parts = target_parts::all);

  const target_config& config() const { return config_; }
  compute_dtype dtype() const { return dtype_; }
  at::Device device() const { return embedding_.device(); }
  const std::string& content_hash() const { return content_hash_; }  // model_folder::content_hash

  const at::Tensor& embedding() const { return embedding_; }    // [V, H] compute dtype, as stored
  const packed_linear& head() const { return head_; }           // [V, H]; keeps its plain form
  const at::Tensor& final_norm() const { return final_norm_; }  // [H] fp32, what is multiplied by

  // hidden [n, H] before the final norm -> [n, V] compute dtype, soft-capped where the family does.
  at::Tensor logits(const at::Tensor& hidden) const;
  at::Tensor normed(const at::Tensor& hidden) const;  // final norm only, [n, H]

  struct captured {
    std::vector<at::Tensor> taps;  // per tap asked, in its order: [T, H] compute dtype
    at::Tensor last_hidden;        // [T, H] raw, before the final norm; undefined unless asked
  };
  // One packed row: ids [T]; doc_offsets [docs + 1], 0 first and T last. Attention is causal within
  // each document and positions restart at 0 in each. taps: 0-based layers, tap j = residual stream
  // after layer j without final norm (dflash.md 2.2). Computes no layer that nothing asks for. The
  // result depends on the arguments and the thread count only. Ids must be in [0, V).
  // `stages`, which the calling thread owns, gets the times of embedding, attention and MLP by
  // groups of layers_per_stage layers; null: nobody wants them. The CPU's kernels only.
  captured capture(std::span<const int32_t> ids,
                   std::span<const int32_t> doc_offsets,
                   std::span<const int> taps,
                   bool want_last,
                   stage_timer* stages = nullptr) const;

  // The same in ATen operators, on any device; equal within rounding.
  captured capture_reference(std::span<const int32_t> ids,
                             std::span<const int32_t> doc_offsets,
                             std::span<const int> taps,
                             bool want_last) const;

  struct chunk {
    int64_t slot;                     // of the cache; each slot at most once a call
    std::span<const int32_t> tokens;  // appended at the slot's present length
  };
  struct cached {
    at::Tensor hidden;             // [n, H] raw residual after the last layer
    std::vector<at::Tensor> taps;  // as in captured, [n, H]
  };
  // A ragged batch, rows in order of the chunks; lengths of the slots grow by the chunks' sizes. A
  // chunk that does not fit in its slot, or a cache on another device, is a broken invariant.
  cached forward(kv_cache& cache,
                 std::span<const chunk> chunks,
                 std::span<const int> taps = {}) const;

private:
  struct pass;
  struct cached_pass;
  target() = default;
  // [n, rotary dims]: cos, then sin.
  std::vector<float> rope_rows(layer_kind kind, std::span<const int32_t> positions) const;
  at::Tensor normed_reference(const at::Tensor& hidden) const;
  void check_ids(std::span<const int32_t> ids) const;
  pass begin(std::span<const int32_t> ids, std::span<const int32_t> positions) const;
  // Runs `layers` layers; after_layer(i) sees the residual stream after layer i.
  void run(pass& state, int64_t layers, const std::function<void(int64_t)>& after_layer) const;
  at::Tensor mix_attention(int64_t layer, const at::Tensor& normed, pass& state) const;
  at::Tensor mix_linear(int64_t layer, const at::Tensor& normed, pass& state) const;
  at::Tensor attend_reference(int64_t layer,
                              const at::Tensor& normed,
                              std::span<const int32_t> doc_offsets,
                              std::span<const at::Tensor> rope) const;
  at::Tensor mix_linear_reference(int64_t layer,
                                  const at::Tensor& normed,
                                  std::span<const int32_t> doc_offsets) const;
  // The cached forward in ATen operators (target_cached.cpp).
  cached forward_reference(kv_cache& cache,
                           std::span<const chunk> chunks,
                           std::span<const int> taps) const;
  at::Tensor attend_cached(int64_t layer, const at::Tensor& normed, const cached_pass& p) const;
  at::Tensor mix_linear_cached(int64_t layer, const at::Tensor& normed, const cached_pass& p) const;

  target_config config_;
  compute_dtype dtype_ = compute_dtype::fp32;
  std::string content_hash_;
  at::Tensor embedding_, final_norm_;
  packed_linear head_;
  std::vector<target_layer> layers_;
  rope_frequencies rope_, sliding_rope_;
};

}  // namespace dflash

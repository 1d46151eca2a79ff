// Head product, losses, metrics and the gradient back to the hidden state, fused over chunks of
// whole blocks so that logits stay in cache and memory never grows with blocks x vocabulary
// (design.md, numbers).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device/packed_linear.hpp"
#include "device/stage_timer.hpp"
#include "model/loss.hpp"

namespace dflash {

// Rows whose logits exist at a time.
int64_t loss_chunk_rows(bool cpu, int64_t vocab);

class head_loss {
public:
  // head [V, H], or the rows of a draft vocabulary, whose rows labels and teacher logits then are:
  // keeps its plain form, which the product back reads. final_norm, rms_eps, logit_cap (0: none):
  // of the target, for teacher rows. The drafter's own logits are never capped: z-lab's decoder
  // does so only where the drafter's configuration has a cap, which ours never has.
  head_loss(packed_linear head,
            at::Tensor final_norm,
            double rms_eps,
            int64_t block_size,
            loss_terms terms,
            slot_weights weights,
            double logit_cap = 0);

  struct result {
    step_sums sums;
    at::Tensor d_hidden;  // [A (B-1), H] like hidden; undefined without gradient
  };
  // hidden [A (B-1), H] after the drafter's final norm. last_hidden [T, H] raw, for terms that read
  // the teacher and for labels outside the draft vocabulary only.
  result run(const at::Tensor& hidden,
             const slot_plan& plan,
             const at::Tensor& last_hidden,
             bool gradient,
             bool metrics,
             stage_timer& timer) const;

  // [n, H] -> [n, V].
  at::Tensor logits(const at::Tensor& hidden) const { return head_(hidden); }

private:
  // positions [n] int32 -> [n, V].
  at::Tensor teacher_logits(const at::Tensor& last_hidden, const at::Tensor& positions) const;
  // Gives each label that is outside_draft the target's best draft token, as in speculators;
  // returns which ones they were.
  std::vector<bool> label_outside(std::vector<int32_t>& label,
                                  std::span<const int32_t> positions,
                                  const at::Tensor& last_hidden) const;

  packed_linear head_;
  at::Tensor final_norm_;
  double rms_eps_;
  int64_t block_size_;
  loss_terms terms_;
  slot_weights weights_;
  double logit_cap_;
};

}  // namespace dflash

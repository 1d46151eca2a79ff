// Head product, losses, metrics and the gradient back to the hidden state, fused over chunks of
// whole blocks so that logits stay in cache and memory never grows with blocks x vocabulary
// (design.md, numbers).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "device/packed_linear.hpp"
#include "model/loss.hpp"
#include "model/stage_timer.hpp"

namespace dflash {

class head_loss {
public:
  // head [V, H]: keeps its plain form, which the product back reads. final_norm, rms_eps: of the
  // target, for teacher rows.
  head_loss(packed_linear head,
            at::Tensor final_norm,
            double rms_eps,
            int64_t block_size,
            loss_terms terms,
            slot_weights weights);

  struct result {
    step_sums sums;
    at::Tensor d_hidden;  // [A (B-1), H] like hidden; undefined without gradient
  };
  // hidden [A (B-1), H] after the drafter's final norm. last_hidden [T, H] raw, for terms that read
  // the teacher only.
  result run(const at::Tensor& hidden,
             const slot_plan& plan,
             const at::Tensor& last_hidden,
             bool gradient,
             bool metrics,
             stage_timer& timer) const;

  // [n, H] -> [n, V].
  at::Tensor logits(const at::Tensor& hidden) const { return head_(hidden); }

private:
  at::Tensor teacher_logits(const at::Tensor& last_hidden,
                            std::span<const int32_t> positions) const;

  packed_linear head_;
  at::Tensor final_norm_;
  double rms_eps_;
  int64_t block_size_;
  loss_terms terms_;
  slot_weights weights_;
};

}  // namespace dflash

#include "model/head_loss.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "config/error.hpp"
#include "device/kernels/loss_rows.hpp"
#include "device/kernels/norms.hpp"

namespace dflash {
namespace {

// Rows of one chunk: measured on the CPU, logits of 256 rows x 49152 in bf16 (25 MB) still lie in
// the shared cache between the product, the row pass and the product back, and are enough rows for
// the product.
constexpr int64_t chunk_rows = 256;

// Adds one chunk's rows [first, first + rows) to the sums, in order.
void add_rows(step_sums& s,
              const slot_plan& plan,
              const kernel::loss_row_results& r,
              const loss_terms& terms,
              int64_t first,
              bool metrics) {
  const int64_t per_block = plan.block_size - 1, rows = static_cast<int64_t>(r.ce.size());
  for (int64_t begin = 0; begin < rows; begin += per_block) {
    int64_t lead = 0, supervised = 0;
    bool leading = true;
    for (int64_t k = 0; k < per_block; ++k) {
      const size_t i = static_cast<size_t>(begin + k), at = static_cast<size_t>(first) + i;
      const double w = static_cast<double>(plan.weight[at]);
      if (w == 0) {
        leading = false;
        continue;
      }
      const double ce = static_cast<double>(r.ce[i]), kl = static_cast<double>(r.kl[i]);
      s.weight_sum += w;
      s.ce += w * ce;
      s.kl += w * kl;
      s.loss += w * (terms.ce * ce + terms.kl * kl);
      ++s.supervised;
      ++supervised;
      ++s.supervised_at[static_cast<size_t>(k + 1)];
      if (!metrics) continue;
      s.top4 += r.rank[i] < 4;
      s.top8 += r.rank[i] < 8;
      if (r.rank[i] == 0) {
        ++s.hits;
        ++s.hits_at[static_cast<size_t>(k + 1)];
        lead += leading;
      } else {
        leading = false;
      }
    }
    if (!plan.valid[static_cast<size_t>((first + begin) / per_block)]) continue;
    ++s.blocks;
    const bool cut = supervised < per_block;
    s.cut_blocks += cut;
    s.lead_sum += lead;
    s.full_blocks += metrics && !cut && lead == per_block;
  }
}

}  // namespace

head_loss::head_loss(
    packed_linear head, at::Tensor final_norm, double rms_eps, int64_t block_size, loss_terms terms)
    : head_(std::move(head)),
      final_norm_(std::move(final_norm)),
      rms_eps_(rms_eps),
      block_size_(block_size),
      terms_(terms) {
  if (head_.is_packed())
    head_back_ = packed_linear(head_.weight().t().contiguous(), plain_weight::drop);
}

at::Tensor head_loss::teacher_logits(const at::Tensor& last_hidden,
                                     const slot_plan& plan,
                                     int64_t first,
                                     int64_t rows) const {
  const at::Tensor ids = at::from_blob(const_cast<int32_t*>(plan.teacher.data() + first),
                                       {rows},
                                       at::TensorOptions().dtype(at::kInt))
                             .to(last_hidden.device());
  const at::Tensor raw = at::index_select(last_hidden, 0, ids);
  at::Tensor normed = at::empty_like(raw);
  kernel::rms_norm(normed, raw, final_norm_, rms_eps_);
  return head_(normed);
}

head_loss::result head_loss::run(const at::Tensor& hidden,
                                 const slot_plan& plan,
                                 const at::Tensor& last_hidden,
                                 bool gradient,
                                 bool metrics,
                                 stage_timer& timer) const {
  DFLASH_CHECK(plan.block_size == block_size_, "plan of another block size");
  const bool kl = terms_.kl != 0;
  DFLASH_CHECK(!kl || last_hidden.defined(), "kl needs the target's last hidden rows");
  result out;
  out.sums.hits_at.assign(static_cast<size_t>(block_size_), 0);
  out.sums.supervised_at.assign(static_cast<size_t>(block_size_), 0);
  if (gradient) out.d_hidden = at::empty_like(hidden);
  const int64_t per_block = block_size_ - 1, total = hidden.size(0);
  const int64_t step = std::max<int64_t>(1, chunk_rows / per_block) * per_block;
  const kernel::loss_factors factors{
      .ce = terms_.ce, .kl = terms_.kl, .temperature = terms_.temperature};
  timer.reset();
  for (int64_t first = 0; first < total; first += step) {
    const int64_t rows = std::min(step, total - first);
    const size_t at = static_cast<size_t>(first), count = static_cast<size_t>(rows);
    at::Tensor teacher;
    if (kl) {
      teacher = teacher_logits(last_hidden, plan, first, rows);
      timer.mark("head.teacher");
    }
    at::Tensor logits = head_(hidden.narrow(0, first, rows));
    timer.mark("head.product");
    const kernel::loss_row_results r = kernel::loss_rows(logits,
                                                         teacher,
                                                         std::span(plan.label).subspan(at, count),
                                                         std::span(plan.weight).subspan(at, count),
                                                         factors,
                                                         gradient);
    add_rows(out.sums, plan, r, terms_, first, metrics);
    timer.mark("head.rows");
    if (!gradient) continue;
    at::Tensor d = out.d_hidden.narrow(0, first, rows);
    if (head_back_.defined())
      d.copy_(head_back_(logits));
    else
      at::mm_out(d, logits, head_.weight());
    timer.mark("head.back");
  }
  out.sums.finite = std::isfinite(out.sums.loss);
  return out;
}

}  // namespace dflash

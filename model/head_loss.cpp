#include "model/head_loss.hpp"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "config/error.hpp"
#include "device/kernels/loss_rows.hpp"
#include "device/kernels/norms.hpp"
#include "device/upload.hpp"
#include "model/draft_vocab.hpp"

namespace dflash {
namespace {

// Rows of one chunk: measured on the CPU, logits of 192 rows x 49152 in bf16 (19 MB) still lie in
// the shared cache between the product, the row pass and the product back, and are enough rows for
// the product (128 are not, 256 are no faster).
constexpr int64_t chunk_rows = 192;

// Elements of one chunk's logits on a device, where there is no cache to stay in: as many rows as
// keep it busy, few enough that the fp32 temporaries of the plain form (0.5 GB each) fit.
constexpr int64_t device_chunk = int64_t{1} << 27;

// Values of all slots of a batch, [A (B-1)]; rank -1 where not supervised.
struct slot_values {
  std::array<std::vector<float>, kernel::loss_term_count> term;
  std::vector<float> weight;  // final ones
  std::vector<int32_t> rank;
};

// Sums over blocks, in order: bits do not depend on chunks.
void add_blocks(step_sums& s,
                const slot_plan& plan,
                const slot_values& r,
                const loss_terms& terms,
                bool metrics) {
  const int64_t per_block = plan.block_size - 1, rows = static_cast<int64_t>(r.rank.size());
  constexpr size_t cap = kernel::index_of(kernel::loss_term::cap);
  for (int64_t begin = 0; begin < rows; begin += per_block) {
    int64_t lead = 0, supervised = 0;
    bool leading = true;
    for (int64_t k = 0; k < per_block; ++k) {
      const size_t i = static_cast<size_t>(begin + k);
      if (plan.weight[i] == 0) {
        leading = false;
        continue;
      }
      const double w = static_cast<double>(r.weight[i]);
      s.weight_sum += w;
      double loss = 0;
      for (size_t t = 0; t < r.term.size(); ++t) {
        if (r.term[t].empty()) continue;
        const double value = static_cast<double>(r.term[t][i]);
        s.terms[t] += w * value;
        loss += terms.factor[t] * value;
      }
      s.loss += w * loss;
      if (!r.term[cap].empty() && r.rank[i] == 0) s.cap_weight += w;
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
    if (!plan.valid[static_cast<size_t>(begin / per_block)]) continue;
    ++s.blocks;
    const bool cut = supervised < per_block;
    s.cut_blocks += cut;
    s.lead_sum += lead;
    s.full_blocks += metrics && !cut && lead == per_block;
  }
}

// All of a chunk in one tensor, so that it comes to the host at once. A rank is below 2^24.
at::Tensor packed(const kernel::loss_row_tensors& r) {
  std::vector<at::Tensor> lines;
  for (const at::Tensor& term : r.term)
    lines.push_back(term.defined() ? term.to(at::kFloat) : at::zeros_like(r.rank, at::kFloat));
  lines.push_back(r.rank.to(at::kFloat));
  return at::stack(lines);
}

}  // namespace

int64_t loss_chunk_rows(bool cpu, int64_t vocab) {
  return cpu ? chunk_rows : std::max<int64_t>(64, device_chunk / vocab / 64 * 64);
}

head_loss::head_loss(packed_linear head,
                     at::Tensor final_norm,
                     double rms_eps,
                     int64_t block_size,
                     loss_terms terms,
                     slot_weights weights,
                     double logit_cap)
    : head_(std::move(head)),
      final_norm_(std::move(final_norm)),
      rms_eps_(rms_eps),
      block_size_(block_size),
      terms_(terms),
      weights_(weights),
      logit_cap_(logit_cap) {}

at::Tensor head_loss::teacher_logits(const at::Tensor& last_hidden,
                                     const at::Tensor& positions) const {
  const at::Tensor raw = at::index_select(last_hidden, 0, positions);
  at::Tensor normed = at::empty_like(raw);
  kernel::rms_norm(normed, raw, final_norm_, rms_eps_);
  at::Tensor logits = head_(normed);
  if (logit_cap_ > 0) logits.div_(logit_cap_).tanh_().mul_(logit_cap_);
  return logits;
}

std::vector<bool> head_loss::label_outside(std::vector<int32_t>& label,
                                           std::span<const int32_t> positions,
                                           const at::Tensor& last_hidden) const {
  std::vector<bool> outside(label.size(), false);
  std::vector<size_t> slots;
  for (size_t i = 0; i < label.size(); ++i) {
    outside[i] = label[i] == outside_draft;
    if (outside[i]) slots.push_back(i);
  }
  DFLASH_CHECK(slots.empty() || last_hidden.defined(),
               "labels outside the draft vocabulary need the target's last hidden rows");
  const size_t most = static_cast<size_t>(chunk_rows);
  for (size_t first = 0; first < slots.size(); first += most) {
    const auto part = std::span(slots).subspan(first, std::min(most, slots.size() - first));
    std::vector<int32_t> at;
    for (const size_t i : part) at.push_back(positions[i]);
    const at::Tensor best =
        at::argmax(teacher_logits(last_hidden, upload(at, last_hidden.device())), 1)
            .to(at::kCPU)
            .contiguous();
    for (size_t i = 0; i < part.size(); ++i)
      label[part[i]] = static_cast<int32_t>(best.const_data_ptr<int64_t>()[i]);
  }
  return outside;
}

head_loss::result head_loss::run(const at::Tensor& hidden,
                                 const slot_plan& plan,
                                 const at::Tensor& last_hidden,
                                 bool gradient,
                                 bool metrics,
                                 stage_timer& timer) const {
  DFLASH_CHECK(plan.block_size == block_size_, "plan of another block size");
  const bool taught = terms_.teacher();
  DFLASH_CHECK(!taught || last_hidden.defined(), "a term needs the target's last hidden rows");
  timer.reset();
  const size_t slots = plan.weight.size();
  // Slots without supervision cost as much as others and give nothing: on the CPU, where shapes are
  // free, only the others are worked on. A GPU keeps its shapes.
  std::vector<int32_t> rows;
  for (size_t i = 0; i < slots; ++i)
    if (!hidden.is_cpu() || plan.weight[i] != 0) rows.push_back(static_cast<int32_t>(i));
  const bool all = rows.size() == slots;
  std::vector<int32_t> label, teacher;
  std::vector<float> weight;
  for (const int32_t i : rows) {
    label.push_back(plan.label[static_cast<size_t>(i)]);
    teacher.push_back(plan.teacher[static_cast<size_t>(i)]);
    weight.push_back(plan.weight[static_cast<size_t>(i)]);
  }
  const std::vector<bool> outside = label_outside(label, teacher, last_hidden);
  const at::Device device = hidden.device();
  const at::Tensor ids = upload(rows, device);
  const at::Tensor input = all ? hidden : at::index_select(hidden, 0, ids);
  at::Tensor d_input = gradient ? at::empty_like(input) : at::Tensor();
  slot_values values;
  values.rank.assign(slots, -1);
  for (size_t t = 0; t < values.term.size(); ++t)
    if (t == 0 || terms_.factor[t] != 0) values.term[t].assign(slots, 0.0f);  // ce always
  const int64_t total = static_cast<int64_t>(rows.size());
  const auto read = [&](size_t row, size_t term, float value) {
    if (!values.term[term].empty()) values.term[term][static_cast<size_t>(rows[row])] = value;
  };
  // The data's token is what decoding would commit: a stand-in for it is never a hit.
  const auto read_rank = [&](size_t row, int32_t rank) {
    values.rank[static_cast<size_t>(rows[row])] =
        outside[row] ? std::numeric_limits<int32_t>::max() : rank;
  };
  const at::Tensor teacher_rows = taught ? upload(teacher, device) : at::Tensor();
  at::Tensor label_rows, weight_rows;  // of a device
  if (!device.is_cpu()) {
    label_rows = upload(label, device).to(at::kLong);
    weight_rows = upload(weight, device);
  }
  std::vector<at::Tensor> found;  // on a device, per chunk: [terms + 1, n], the rank last
  const int64_t most = loss_chunk_rows(device.is_cpu(), head_.weight().size(0));
  for (int64_t first = 0; first < total; first += most) {
    const int64_t n = std::min(most, total - first);
    const size_t at = static_cast<size_t>(first), count = static_cast<size_t>(n);
    at::Tensor target_logits;
    if (taught) {
      target_logits = teacher_logits(last_hidden, teacher_rows.narrow(0, first, n));
      timer.mark("head.teacher");
    }
    at::Tensor logits = head_(input.narrow(0, first, n));
    timer.mark("head.product");
    if (device.is_cpu()) {
      const kernel::loss_row_results r = kernel::loss_rows(logits,
                                                           target_logits,
                                                           std::span(label).subspan(at, count),
                                                           std::span(weight).subspan(at, count),
                                                           terms_,
                                                           gradient);
      for (size_t i = 0; i < count; ++i) {
        for (size_t t = 0; t < r.term.size(); ++t) read(at + i, t, r.term[t][i]);
        read_rank(at + i, r.rank[i]);
      }
    } else {
      found.push_back(packed(kernel::loss_rows_on_device(logits,
                                                         target_logits,
                                                         label_rows.narrow(0, first, n),
                                                         weight_rows.narrow(0, first, n),
                                                         terms_,
                                                         gradient)));
    }
    timer.mark("head.rows");
    if (!gradient) continue;
    at::Tensor d = d_input.narrow(0, first, n);
    // From the plain head: a second packing of its transpose would save 2 % of a step for another V
    // x H in memory.
    at::mm_out(d, logits, head_.weight());
    timer.mark("head.back");
  }
  if (!found.empty()) {  // the only wait of the host
    const at::Tensor all_found = at::cat(found, 1).to(at::kCPU);
    const float* const p = all_found.const_data_ptr<float>();
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t t = 0; t < kernel::loss_term_count; ++t) read(i, t, p[t * rows.size() + i]);
      read_rank(i, static_cast<int32_t>(p[kernel::loss_term_count * rows.size() + i]));
    }
  }
  values.weight = plan.weight;
  if (weights_.how == slot_weights::kind::dpace) {
    // Weights come from the losses themselves; gradients are linear in them, so that they can be
    // laid on the narrow side of the head.
    values.weight = dpace_weights(plan, values.term[0], weights_.alpha);
    for (size_t i = 0; i < rows.size(); ++i)
      weight[i] = values.weight[static_cast<size_t>(rows[i])];
    if (gradient) d_input.mul_(upload(weight, device).unsqueeze(1));
  }
  result out;
  out.sums.hits_at.assign(static_cast<size_t>(block_size_), 0);
  out.sums.supervised_at.assign(static_cast<size_t>(block_size_), 0);
  add_blocks(out.sums, plan, values, terms_, metrics);
  out.sums.finite = std::isfinite(out.sums.loss);
  if (gradient) {
    out.d_hidden = all ? d_input : at::zeros_like(hidden);
    if (!all) out.d_hidden.index_copy_(0, ids.to(at::kLong), d_input);
  }
  timer.mark("head.rows");
  return out;
}

}  // namespace dflash

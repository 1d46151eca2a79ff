#include "model/optimizer.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "config/error.hpp"
#include "device/kernels/adamw.hpp"
#include "model/schedule.hpp"

namespace dflash {

optimizer::optimizer(optim_section options,
                     std::vector<parameter> parameters,
                     uint64_t total_steps,
                     bool bf16_newton_schulz)
    : options_(std::move(options)),
      total_steps_(total_steps),
      bf16_newton_schulz_(bf16_newton_schulz) {
  DFLASH_CHECK(options_.name == "adamw" || options_.name == "muon", "optimizer", options_.name);
  for (parameter& p : parameters) {
    DFLASH_CHECK(p.weight.scalar_type() == at::kFloat && p.weight.is_contiguous(),
                 "masters are fp32",
                 p.name);
    slot s;
    s.decay = p.weight.dim() > 1;  // norms are not decayed
    s.muon = options_.name == "muon" && p.weight.dim() == 2;
    s.first = at::zeros_like(p.weight);
    if (!s.muon) s.second = at::zeros_like(p.weight);
    s.p = std::move(p);
    slots_.push_back(std::move(s));
  }
}

update_report optimizer::apply(const std::vector<at::Tensor>& gradients,
                               double weight_sum,
                               uint64_t step,
                               bool skip) {
  DFLASH_CHECK(gradients.size() == slots_.size(), "one gradient per parameter");
  update_report report;
  const double factor = schedule_factor(options_, step, total_steps_);
  report.lr = options_.lr * factor;
  kernel::square_sum squares;
  for (const at::Tensor& g : gradients) kernel::add_squares(g, squares);
  report.grad_norm = weight_sum > 0 ? std::sqrt(squares.value()) / weight_sum : 0;
  // fp32 partial sums may overflow where the norm itself would not: such a step is lost as well.
  if (skip || !(weight_sum > 0) || !std::isfinite(weight_sum) || !std::isfinite(report.grad_norm)) {
    report.skipped = true;
    return report;
  }
  double scale = 1.0 / weight_sum;
  // torch.nn.utils.clip_grad_norm_'s form, its 1e-6 included.
  if (options_.clip > 0) scale *= std::min(1.0, options_.clip / (report.grad_norm + 1e-6));
  ++updates_;
  kernel::square_sum moved;
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].muon)
      update_muon(slots_[i], gradients[i], scale, options_.muon_lr * factor, moved);
    else
      update_adamw(slots_[i], gradients[i], scale, report.lr, moved);
  report.update_norm = std::sqrt(moved.value());
  return report;
}

void optimizer::update_adamw(
    slot& s, const at::Tensor& gradient, double scale, double lr, kernel::square_sum& moved) {
  kernel::adamw_update(s.p.weight,
                       s.first,
                       s.second,
                       gradient,
                       s.p.compute,
                       {.lr = lr,
                        .beta1 = options_.betas[0],
                        .beta2 = options_.betas[1],
                        .eps = 1e-8,
                        .weight_decay = s.decay ? options_.weight_decay : 0.0,
                        .gradient_scale = scale,
                        .updates = updates_},
                       moved);
}

// torch.optim.Muon with momentum 0.95, nesterov and either adjust_lr_fn.
void optimizer::update_muon(
    slot& s, const at::Tensor& gradient, double scale, double lr, kernel::square_sum& moved) {
  constexpr double momentum = 0.95;
  s.first.mul_(momentum).add_(gradient, (1.0 - momentum) * scale);
  at::Tensor nesterov = s.first * momentum;
  nesterov.add_(gradient, (1.0 - momentum) * scale);
  const at::Tensor update = newton_schulz(nesterov, bf16_newton_schulz_).to(at::kFloat);
  const double r = static_cast<double>(gradient.size(0)), c = static_cast<double>(gradient.size(1));
  const double adjusted = options_.muon_adjust_lr == "original" ? std::sqrt(std::max(1.0, r / c))
                                                                : 0.2 * std::sqrt(std::max(r, c));
  nesterov.copy_(s.p.weight);  // now the weight before the update
  s.p.weight.mul_(1.0 - lr * options_.weight_decay);
  s.p.weight.add_(update, -lr * adjusted);
  if (s.p.compute.defined()) s.p.compute.copy_(s.p.weight);
  kernel::add_squares(nesterov.sub_(s.p.weight), moved);
}

std::vector<std::pair<std::string, at::Tensor>> optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const slot& s : slots_) {
    out.emplace_back((s.muon ? "momentum." : "exp_avg.") + s.p.name, s.first);
    if (s.second.defined()) out.emplace_back("exp_avg_sq." + s.p.name, s.second);
  }
  return out;
}

void optimizer::refresh_compute() {
  for (slot& s : slots_)
    if (s.p.compute.defined()) s.p.compute.copy_(s.p.weight);
}

}  // namespace dflash

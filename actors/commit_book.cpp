#include "actors/commit_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "config/error.hpp"
#include "model/loss.hpp"

namespace dflash {

commit_book::commit_book(commit_options options)
    : options_(options), steps_(options.first_step), last_(options.plan.total_steps()) {
  for (uint32_t rank = 0; rank < options.drafters; ++rank) present_.insert(rank);
  first_.skipped = options.skipped;
  first_.losses = options.losses;
}

const commit_book::record& commit_book::before_or(uint64_t steps) const {
  return steps == options_.first_step ? first_ : records_.at(steps - options_.first_step - 1);
}

void commit_book::reduced(const step_reduced& m) {
  if (m.attempt != attempt_) return;
  DFLASH_CHECK(m.step == steps_ && !going_,
               "a drafter reduced another step than the open one",
               m.step,
               steps_);
  DFLASH_CHECK(reduced_.insert(m.rank).second, "a drafter reduced a step twice", m.step, m.rank);
  for (const batch_report& report : m.reports) reports_.insert_or_assign(report.k, report);
}

bool commit_book::is_ready() const {
  return !going_ && reduced_.size() == options_.drafters && present_.size() == options_.drafters;
}

step_go commit_book::go() {
  DFLASH_CHECK(is_ready(), "a go before all have reduced", steps_);
  going_ = true;
  double loss = 0, weight = 0;
  for (const auto& [k, report] : reports_)
    if (report.sums) {
      loss += report.sums->finite ? report.sums->loss : std::nan("");
      weight += report.sums->weight_sum;
    }
  loss_ = weight > 0 || std::isnan(loss) ? loss / weight : 0;
  const auto score = before_or(steps_).losses.score(loss_);
  if (steps_ < most_steps())
    skip_ = before_or(steps_ + 1).skipped_for;
  else if (!std::isfinite(loss_))
    skip_ = skip_cause::not_finite;
  else if (options_.skip_spikes > 0 && score && *score >= options_.skip_spikes)
    skip_ = skip_cause::loss_spike;
  else
    skip_ = skip_cause::none;
  return {steps_, attempt_, skip_ != skip_cause::none};
}

std::optional<step_done> commit_book::committed(const step_committed& m) {
  DFLASH_CHECK(m.step == steps_ && going_, "a drafter updated without a go", m.step, steps_);
  committed_.push_back(m);
  const step_committed& first = committed_.front();
  if (!(m.grad_norm == first.grad_norm) || !(m.update_norm == first.update_norm) ||
      m.skipped != first.skipped)
    throw std::runtime_error(fmt::format(
        "replicas disagree after step {}: drafter {} has gradient norm {}, drafter {} has {}",
        m.step,
        first.rank,
        static_cast<double>(first.grad_norm),
        m.rank,
        static_cast<double>(m.grad_norm)));
  if (!all_have_updated()) return std::nullopt;
  return finish();
}

bool commit_book::all_have_updated() const {
  return !present_.empty() && std::all_of(present_.begin(), present_.end(), [&](uint32_t rank) {
    return std::any_of(
        committed_.begin(), committed_.end(), [&](const auto& m) { return m.rank == rank; });
  });
}

std::optional<step_done> commit_book::lost(uint32_t rank) {
  present_.erase(rank);
  if (!going_) {
    reduced_.erase(rank);
    return std::nullopt;
  }
  if (!all_have_updated()) return std::nullopt;
  return finish();
}

uint32_t commit_book::begin_attempt() {
  DFLASH_CHECK(!going_, "a step that is done cannot be tried again", steps_);
  reduced_.clear();
  reports_.clear();
  return ++attempt_;
}

uint32_t commit_book::give_up_step() {
  going_ = false;
  committed_.clear();
  present_.clear();
  return begin_attempt();
}

void commit_book::rewind(uint64_t steps) {
  if (steps < options_.first_step || steps > steps_)
    throw std::runtime_error(
        fmt::format("the drafters went back to step {}, but the run went on from step {} and is at "
                    "step {}: its newest checkpoint is not its own",
                    steps,
                    options_.first_step,
                    steps_));
  steps_ = steps;
}

step_done commit_book::finish() {
  const step_committed& first = committed_.front();
  const record& before = before_or(steps_);
  const step_range range = options_.plan.step(steps_);
  step_done done;
  done.step = steps_;
  done.first_k = range.first_k;
  done.end_k = range.last_k;
  done.epoch = range.epoch;
  done.grad_norm = first.grad_norm;
  done.rate = first.rate;
  done.update_norm = first.update_norm;
  done.skipped = first.skipped;
  if (first.skipped) {
    done.skipped_for = skip_;
    if (skip_ == skip_cause::none)
      done.skipped_for =
          std::any_of(reports_.begin(),
                      reports_.end(),
                      [](const auto& r) { return r.second.sums && r.second.sums->weight_sum > 0; })
              ? skip_cause::not_finite
              : skip_cause::no_weight;
  }
  if (const auto score = before.losses.score(loss_); score && std::isfinite(*score)) {
    done.loss_z = *score;
    done.has_loss_z = true;
  }
  auto reports = std::make_shared<std::vector<batch_report>>();
  for (auto& [k, report] : reports_) reports->push_back(std::move(report));
  done.reports = std::move(reports);

  record now;
  now.grad_norm = done.grad_norm;
  now.rate = done.rate;
  now.update_norm = done.update_norm;
  now.loss = loss_;
  now.skipped_for = done.skipped_for;
  now.skipped = before.skipped + (done.skipped ? 1 : 0);
  now.losses = before.losses;
  if (std::isfinite(loss_) && done.skipped_for != skip_cause::no_weight) now.losses.add(loss_);
  now.skips_in_a_row = done.skipped_for == skip_cause::none        ? 0
                       : done.skipped_for == skip_cause::no_weight ? before.skips_in_a_row
                                                                   : before.skips_in_a_row + 1;
  done.again = steps_ < most_steps();
  if (done.again)
    compare_with(before_or(steps_ + 1), now);
  else
    records_.push_back(now);
  ++steps_;
  going_ = false;
  reduced_.clear();
  reports_.clear();
  committed_.clear();
  return done;
}

void commit_book::compare_with(const record& before, const record& now) const {
  const auto compare = [&](const char* what, f64_bits was, f64_bits is) {
    if (was == is) return;
    throw std::runtime_error(fmt::format(
        "step {}, done again from the last checkpoint, has {} {} instead of {}: this machine does "
        "not give the same bits twice, and the run cannot go on as the same run; --resume goes on "
        "from the checkpoint",
        steps_ + 1,
        what,
        static_cast<double>(is),
        static_cast<double>(was)));
  };
  compare("skipped steps", static_cast<double>(before.skipped), static_cast<double>(now.skipped));
  compare("learning rate", before.rate, now.rate);
  compare("update norm", before.update_norm, now.update_norm);
  if (before.skipped_for != skip_cause::none) return;  // for values that need not come back
  compare("gradient norm", before.grad_norm, now.grad_norm);
  compare("loss", before.loss, now.loss);
}

std::string commit_book::diagnosis() const {
  const record& last = before_or(steps_);
  if (last.skips_in_a_row < options_.max_skips_in_a_row) return {};
  if (last.skipped_for == skip_cause::loss_spike)
    return fmt::format(
        "{} steps in a row were skipped, the last one (step {}) for its loss of {:.4f}, while the "
        "mean before was {:.4f}: the loss does not come back; lower optim.lr, or set a higher "
        "optim.skip_spikes",
        last.skips_in_a_row,
        steps_,
        static_cast<double>(last.loss),
        before_or(steps_ - 1).losses.mean);
  return fmt::format(
      "{} steps in a row were skipped, the last one (step {}) because its loss ({}) or gradient is "
      "not finite: the weights are spoiled, or the data or the target is at fault; resume from a "
      "checkpoint before with another optim.lr in a new run",
      last.skips_in_a_row,
      steps_,
      static_cast<double>(last.loss));
}

uint64_t commit_book::stop() {
  return end_at(steps_ + 1);
}

uint64_t commit_book::end_at(uint64_t steps) {
  last_ = std::min(last_, std::max(steps, steps_));
  return last_ == 0 ? 0 : options_.plan.step(last_ - 1).last_k;
}

uint64_t commit_book::next_k_of(uint64_t steps) const {
  return steps == 0 ? 0 : options_.plan.step(steps - 1).last_k;
}

save_request commit_book::make_save_request() const {
  save_request request;
  request.steps = steps_;
  request.next_k = next_k();
  for (const uint64_t k : dropped_)
    if (k < request.next_k) request.dropped.push_back(k);
  request.skipped_steps = skipped();
  const loss_statistics& losses = before_or(steps_).losses;
  request.loss_count = losses.count;
  request.loss_mean = losses.mean;
  request.loss_variance = losses.variance;
  return request;
}

}  // namespace dflash

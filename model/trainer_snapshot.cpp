#include "model/trainer_snapshot.hpp"

#include <ATen/ops/empty.h>

#include "config/error.hpp"

namespace dflash {

namespace {

// Buffers of the shapes of `from`.
void make_buffers(drafter_trainer& trainer, trainer_snapshot& into) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> moments;
  for (const auto& [name, tensor] : trainer.state().state())
    moments.emplace_back(name, tensor.sizes().vec());
  into = blank_snapshot(trainer.config(), trainer.head(), trainer.average() != nullptr, moments);
}

}  // namespace

trainer_snapshot blank_snapshot(
    const drafter_config& config,
    const at::Tensor& head,
    bool average,
    const std::vector<std::pair<std::string, std::vector<int64_t>>>& moments) {
  trainer_snapshot into;
  into.config = config;
  if (!into.config.draft_ids.empty()) into.head = head.to(at::kCPU);
  const auto flat_copy = [&](const std::string& prefix, drafter_weights& views) {
    const auto options = at::TensorOptions().dtype(at::kFloat);
    views = view_drafter_weights(into.config,
                                 at::empty({drafter_parameter_count(into.config)}, options));
    for (const auto& [name, tensor] : named_tensors(views))
      into.tensors.emplace_back(prefix + name, *tensor);
  };
  flat_copy("master.", into.exported);
  if (average) flat_copy("ema.", into.exported);
  for (const auto& [name, sizes] : moments)
    into.tensors.emplace_back(name, at::empty(sizes, at::TensorOptions().dtype(at::kFloat)));
  return into;
}

uint64_t trainer_snapshot::bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors) sum += tensor.nbytes();
  return sum;
}

std::vector<std::pair<std::string, at::Tensor>> trainer_tensors(drafter_trainer& trainer) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [name, tensor] : named_tensors(trainer.masters()))
    all.emplace_back("master." + name, *tensor);
  if (const drafter_weights* average = trainer.average())
    for (const auto& [name, tensor] : named_tensors(*average))
      all.emplace_back("ema." + name, *tensor);
  for (auto& [name, tensor] : trainer.state().state()) all.emplace_back(name, tensor);
  return all;
}

void take_snapshot(drafter_trainer& trainer, trainer_snapshot& into) {
  if (into.tensors.empty()) make_buffers(trainer, into);
  const auto from = trainer_tensors(trainer);
  DFLASH_CHECK(from.size() == into.tensors.size(), "a snapshot of another trainer");
  for (size_t i = 0; i < from.size(); ++i) {
    DFLASH_CHECK(from[i].first == into.tensors[i].first, "order of a snapshot", from[i].first);
    into.tensors[i].second.copy_(from[i].second);
  }
  into.updates = trainer.state().updates();
}

uint64_t snapshot_bytes(drafter_trainer& trainer) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : trainer_tensors(trainer))
    sum += static_cast<uint64_t>(tensor.numel()) * sizeof(float);
  return sum;
}

std::shared_ptr<const trainer_snapshot> snapshot_buffer::take(drafter_trainer& trainer) {
  // A writer that was given up may still read the old one.
  if (!kept_ || kept_.use_count() > 1) kept_ = std::make_shared<trainer_snapshot>();
  take_snapshot(trainer, *kept_);
  return kept_;
}

}  // namespace dflash

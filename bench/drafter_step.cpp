// Training steps of the drafter (forward, loss, backward, clipping, AdamW on fp32 masters) on the
// rows of bench/peers. Prints one line of JSON: median seconds, resident peak over what the inputs,
// the frozen embedding and the start weights take, stages.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/work.hpp"
#include "config/error.hpp"
#include "device/process_settings.hpp"
#include "model/drafter_step.hpp"
#include "model/folder.hpp"

namespace dflash::bench {
namespace {

constexpr size_t warm_steps = 2;  // not counted, on either side

int run(const arguments& given) {
  const std::vector<work_row> rows = read_rows(given.work);
  drafter_config config;
  drafter_weights start = load_drafter(given.work / "drafter", config);
  auto folder = model_folder::open(given.model);
  const at::Tensor embedding =
      folder.load("model.embed_tokens.weight", {config.vocab, config.hidden}, at::kBFloat16);
  const at::Tensor final_norm = folder.load("model.norm.weight", {config.hidden}, at::kFloat);

  frozen_parts frozen{embedding, packed_linear(embedding), final_norm, config.rms_eps};

  // Loaded on both sides: inputs, frozen parts, drafter. From here on everything counts: masters,
  // moments, gradient.
  const peak_memory peak;
  optim_section optim;
  optim.lr = 6e-4;
  optim.weight_decay = 0.01;
  optim.betas = {0.9, 0.999};
  optim.schedule = "constant";
  optim.warmup = {.share = 0, .steps = 0};
  loss_section loss;  // ce, gamma 7
  drafter_trainer trainer(
      config, loss, optim, start, std::move(frozen), compute_dtype::bf16, rows.size());
  trainer.stages().turn_on();
  start = {};  // the masters have taken its place
  std::vector<double> forward_backward, update, step;
  std::map<std::string, double> stages;
  nlohmann::json out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const step_sums sums = trainer.accumulate({rows[i].taps, {}, &rows[i].tokens});
    const double computed = seconds_since(begin);
    const update_report report = trainer.apply(trainer.gradient(), sums.weight_sum, i);
    const double all = seconds_since(begin);
    if (report.skipped)
      throw error("step skipped: the numbers are not finite", given.work.string());
    if (i == 0) out["first_loss"] = sums.mean_loss();
    out["last_loss"] = sums.mean_loss();
    const auto taken = mark_seconds(trainer.stages().take());
    if (i < warm_steps) continue;
    forward_backward.push_back(computed);
    update.push_back(all - computed);
    step.push_back(all);
    for (const auto& [name, seconds] : taken)
      stages[name] += seconds / static_cast<double>(rows.size() - warm_steps);
  }
  out["name"] = "dflash";
  out["step_s"] = median(step);
  out["peak_bytes"] = peak.bytes();
  stages["all.forward_backward"] = median(forward_backward);
  stages["all.update"] = median(update);
  out["stages"] = stages;
  out["parameters"] = drafter_parameter_count(config);
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace dflash::bench

int main(int count, char** values) {
  dflash::restart_with_settings(values);
  try {
    return dflash::bench::run(dflash::bench::parse_arguments(count, values));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}

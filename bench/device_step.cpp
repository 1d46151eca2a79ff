// Training steps of the drafter, or captures of a target, on any device: weights and states are
// random and made on the device, so that no files are needed and one size stands for a model that
// is not there. Prints one line of JSON: median seconds, tokens a second, share of the device's
// peak (MFU), the most memory of the device. Usage: bench_device_step --help
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/work.hpp"
#include "config/error.hpp"
#include "device/devices.hpp"
#include "device/lane_streams.hpp"
#include "device/peak_flops.hpp"
#include "device/process_settings.hpp"
#include "model/drafter_step.hpp"
#include "model/flops.hpp"
#include "model/target.hpp"

namespace dflash::bench {
namespace {

struct options {
  std::string what = "drafter", device = "cpu", size = "smoke", dtype = "bf16", optim = "adamw";
  std::filesystem::path model;
  int64_t tokens = 0, anchors = 0, document = 0;  // 0: the size's own
  size_t steps = 6, warm = 2;
  int threads = 2;
  double peak_flops = 0;  // 0: of the table of known devices
};

struct step_size {
  drafter_config drafter;
  int64_t tokens, anchors, document;
};

drafter_config shape(int64_t layers,
                     int64_t hidden,
                     int64_t inner,
                     int64_t heads,
                     int64_t kv_heads,
                     int64_t head_dim,
                     int64_t vocab,
                     int64_t target_layers) {
  drafter_config c;
  c.layers = layers;
  c.hidden = c.target_hidden = hidden;
  c.intermediate = inner;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.vocab = vocab;
  c.block_size = 16;
  c.mask_token_id = 0;
  c.num_target_layers = target_layers;
  c.max_positions = 40960;
  c.rope_theta = 1e6;
  c.rms_eps = 1e-6;
  c.taps = default_taps(target_layers, layers);
  c.sliding.assign(static_cast<size_t>(layers), false);
  return c;
}

// Shapes of published models' drafters; "smoke" is for tests of this program.
const std::map<std::string, step_size>& sizes() {
  static const std::map<std::string, step_size> all = {
      {"smoke", {shape(2, 64, 128, 4, 2, 16, 512, 8), 128, 8, 64}},
      {"135m", {shape(2, 576, 1536, 9, 3, 64, 49152, 30), 2048, 64, 512}},
      {"4b", {shape(5, 2560, 9728, 32, 8, 128, 151936, 36), 8192, 512, 2048}},
      {"8b", {shape(5, 4096, 12288, 32, 8, 128, 151936, 36), 8192, 512, 2048}},
      {"27b", {shape(5, 5120, 17408, 32, 8, 128, 248320, 64), 8192, 512, 2048}},
  };
  return all;
}

// Documents of equal length, everything supervised, anchors spread over the row.
batch make_batch(int64_t tokens, int64_t anchors, int64_t document, int64_t vocab, uint64_t k) {
  batch b;
  b.k = k;
  b.row = static_cast<int64_t>(k);
  for (int64_t i = 0; i < tokens; ++i)
    b.input_ids.push_back(
        static_cast<int32_t>(1 + (i * 7919 + static_cast<int64_t>(k) * 104729) % (vocab - 1)));
  for (int64_t at = 0; at < tokens; at += document)
    b.doc_offsets.push_back(static_cast<int32_t>(at));
  b.real_docs = static_cast<int32_t>(b.doc_offsets.size());
  for (int32_t d = 0; d < b.real_docs; ++d) b.documents.push_back(d);
  b.doc_offsets.push_back(static_cast<int32_t>(tokens));
  b.loss_mask.assign(static_cast<size_t>(tokens), 1);
  for (int64_t a = 0; a < anchors; ++a)
    b.anchors.push_back(static_cast<int32_t>(a * (tokens - 1) / anchors));
  b.anchor_valid.assign(static_cast<size_t>(anchors), 1);
  return b;
}

at::Tensor random(at::IntArrayRef shape, at::ScalarType type, at::Device device, double deviation) {
  return at::empty(shape, at::TensorOptions(type).device(device)).normal_(0, deviation);
}

// [flat] fp32 masters on the device: matrices N(0, 0.02), norms 1.
drafter_weights random_drafter(const drafter_config& config, at::Device device) {
  auto weights = view_drafter_weights(
      config, random({drafter_parameter_count(config)}, at::kFloat, device, 0.02));
  for (auto& [name, tensor] : named_tensors(weights))
    if (tensor->dim() == 1) tensor->fill_(1);
  return weights;
}

void add_rates(nlohmann::json& out,
               const options& given,
               at::Device device,
               double seconds,
               int64_t tokens,
               double flops) {
  const std::string name = device_name(device);
  const double peak = given.peak_flops > 0 ? given.peak_flops
                                           : known_peak_flops(std::string_view(name)).value_or(0);
  out["name"] = "dflash";
  out["device"] = given.device;
  out["device_name"] = name;
  out["dtype"] = given.dtype;
  out["tokens"] = tokens;
  out["step_s"] = seconds;
  out["tokens_per_s"] = static_cast<double>(tokens) / seconds;
  out["tflops_per_s"] = flops / seconds * 1e-12;
  out["mfu"] = peak > 0 ? nlohmann::json(flops / seconds / peak) : nlohmann::json();
  const auto bytes = peak_memory_bytes(device);
  out["device_peak_bytes"] = bytes ? nlohmann::json(*bytes) : nlohmann::json();
}

nlohmann::json drafter_steps(const options& given, at::Device device) {
  const auto found = sizes().find(given.size);
  if (found == sizes().end()) throw error("no size " + given.size, "--size", "--help lists them");
  const drafter_config& config = found->second.drafter;
  const int64_t tokens = given.tokens > 0 ? given.tokens : found->second.tokens;
  const int64_t anchors = given.anchors > 0 ? given.anchors : found->second.anchors;
  const int64_t document = given.document > 0 ? given.document : found->second.document;
  if (anchors >= tokens) throw error("more anchors than tokens", "--anchors", "fewer anchors");
  const compute_dtype dtype = given.dtype == "bf16" ? compute_dtype::bf16 : compute_dtype::fp32;
  const at::ScalarType type = scalar_type(dtype);

  const at::Tensor embedding = random({config.vocab, config.hidden}, type, device, 0.02);
  frozen_parts frozen{embedding,
                      packed_linear(embedding),
                      at::ones({config.hidden}, at::TensorOptions(at::kFloat).device(device)),
                      config.rms_eps};
  optim_section optim;
  optim.name = given.optim;
  optim.lr = 6e-4;
  optim.schedule = "constant";
  optim.warmup = {.share = 0, .steps = 0};
  drafter_weights start = random_drafter(config, device);
  drafter_trainer trainer(
      config, loss_section{}, optim, start, std::move(frozen), dtype, given.warm + given.steps);
  start = {};
  std::vector<at::Tensor> taps;
  for (size_t j = 0; j < config.taps.size(); ++j)
    taps.push_back(random({tokens, config.target_hidden}, type, device, 1));
  trainer.stages().turn_on();
  if (auto clock = clock_of(device)) trainer.stages().use(std::move(*clock));

  std::vector<double> step, computed;
  std::map<std::string, double> stages;
  nlohmann::json out;
  for (size_t i = 0; i < given.warm + given.steps; ++i) {
    if (i == given.warm) reset_peak_memory(device);
    const batch b = make_batch(tokens, anchors, document, config.vocab, i);
    wait_for(device);
    const auto begin = std::chrono::steady_clock::now();
    const step_sums sums = trainer.accumulate({taps, {}, &b});
    wait_for(device);
    const double half = seconds_since(begin);
    const update_report report = trainer.apply(trainer.gradient(), sums.weight_sum, i);
    wait_for(device);
    const double all = seconds_since(begin);
    if (report.skipped) throw error("step skipped: the numbers are not finite", given.size);
    if (i == 0) out["first_loss"] = sums.mean_loss();
    out["last_loss"] = sums.mean_loss();
    const auto taken = mark_seconds(trainer.stages().take());
    if (i < given.warm) continue;
    step.push_back(all);
    computed.push_back(half);
    for (const auto& [name, seconds] : taken)
      stages[name] += seconds / static_cast<double>(given.steps);
  }
  out["size"] = given.size;
  out["anchors"] = anchors;
  out["document"] = document;
  out["parameters"] = drafter_parameter_count(config);
  out["forward_backward_s"] = median(computed);
  out["stages"] = stages;
  const double flops =
      drafter_batch_flops(config, tokens, anchors, static_cast<double>(document), false);
  add_rates(out, given, device, median(step), tokens, flops);
  return out;
}

nlohmann::json target_captures(const options& given, at::Device device) {
  if (given.model.empty()) throw error("no model", "--model", "name a model's folder");
  const auto model = target::load(
      given.model, given.dtype == "bf16" ? compute_dtype::bf16 : compute_dtype::fp32, device);
  const target_config& c = model->config();
  const int64_t tokens = given.tokens > 0 ? given.tokens : 2048;
  const int64_t document = given.document > 0 ? given.document : std::min<int64_t>(tokens, 512);
  const std::vector<int> taps = default_taps(c.layers, std::min<int64_t>(5, c.layers));
  const batch b = make_batch(tokens, 1, document, c.vocab, 0);
  std::vector<double> times;
  for (size_t i = 0; i < given.warm + given.steps; ++i) {
    if (i == given.warm) reset_peak_memory(device);
    const auto begin = std::chrono::steady_clock::now();
    (void)model->capture(b.input_ids, b.doc_offsets, taps, false);
    wait_for(device);
    if (i >= given.warm) times.push_back(seconds_since(begin));
  }
  nlohmann::json out;
  out["model"] = given.model.string();
  out["document"] = document;
  const double flops = target_row_flops(c, taps.back() + 1, tokens, static_cast<double>(document));
  add_rates(out, given, device, median(times), tokens, flops);
  return out;
}

int run(const options& given) {
  at::set_num_threads(given.threads);
  const at::Device device(given.device);
  if (device.is_cuda() && device.index() >= cuda_devices()) {
    std::printf("skipped: no device\n");
    return 0;
  }
  const at::Device devices[] = {device};
  use_devices(devices);
  nlohmann::json out =
      given.what == "target" ? target_captures(given, device) : drafter_steps(given, device);
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace dflash::bench

int main(int count, char** values) {
  dflash::restart_with_settings(values);
  dflash::bench::options given;
  CLI::App app("Steps of a drafter or captures of a target on one device; one line of JSON.");
  app.add_option("what", given.what, "drafter or target")
      ->check(CLI::IsMember({"drafter", "target"}));
  app.add_option("--device", given.device, "cpu or cuda:I");
  app.add_option("--size", given.size, "of the drafter: smoke, 135m, 4b, 8b, 27b");
  app.add_option("--model", given.model, "folder of the target");
  app.add_option("--dtype", given.dtype)->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--optim", given.optim, "optimizer, as optim.name");
  app.add_option("--tokens", given.tokens, "of a row; 0: the size's own");
  app.add_option("--anchors", given.anchors);
  app.add_option("--document", given.document, "tokens of each document");
  app.add_option("--steps", given.steps)->check(CLI::PositiveNumber);
  app.add_option("--warm", given.warm, "steps before those that count");
  app.add_option("--threads", given.threads, "of the host")->check(CLI::PositiveNumber);
  app.add_option("--peak-flops", given.peak_flops, "of the device; 0: by its name");
  CLI11_PARSE(app, count, values);
  try {
    return dflash::bench::run(given);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error: %s\n", problem.what());
    return 2;
  }
}

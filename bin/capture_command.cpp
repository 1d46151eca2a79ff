// `dflash capture`: the hidden states of a run's data to disk, so that training needs no target.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/postprocess.hpp"
#include "bin/commands.hpp"
#include "bin/device_option.hpp"
#include "bin/lane_work.hpp"
#include "bin/overrides.hpp"
#include "bin/stop_signal.hpp"
#include "bin/version.hpp"
#include "config/error.hpp"
#include "config/run_config.hpp"
#include "device/upload.hpp"
#include "model/capture_run.hpp"
#include "model/drafter_config.hpp"
#include "model/loss.hpp"
#include "model/target.hpp"
#include "observe/format.hpp"
#include "observe/log.hpp"
#include "observe/progress.hpp"

namespace dflash {

namespace {

struct capture_options {
  std::string file, out;
  std::string form = capture_form_rows;
  bool last = false;
};

// Where the lanes compute: GPUs, or the CPU.
std::vector<at::Device> devices_of(const std::vector<std::string>& lanes) {
  std::vector<at::Device> devices;
  for (const std::string& lane : lanes) {
    const lane_name name = parse_lane(lane);
    if (!name.node.empty() || name.sim)
      throw error(name.sim ? "lane " + lane + " is simulated: it makes no hidden states"
                           : "capture uses lanes of this host, not " + lane,
                  "layout.targets",
                  "use lanes cpu:0, cpu:1, ... or cuda:0, cuda:1, ...");
    check_device_of_lane(lane, "layout.targets");
    devices.push_back(device_of_lane(name));
    if (devices.back().type() != devices.front().type())
      throw error("a capture is made on the CPU or on GPUs, not on both: they round differently",
                  "layout.targets",
                  "use lanes cpu:0, cpu:1, ... or cuda:0, cuda:1, ...");
  }
  return devices;
}

// As training chooses it: one lane on a GPU makes "auto" bf16.
compute_dtype dtype_of(const run_config& config) {
  for (const auto* lanes : {&config.layout.targets, &config.layout.drafters})
    for (const std::string& lane : *lanes)
      if (const auto device = device_of_lane(parse_lane(lane)); !device.is_cpu())
        return choose_compute_dtype(config.target.dtype, device);
  return choose_compute_dtype(config.target.dtype);
}

// A draft vocabulary reads it too: other labels become the best token of it that the target has.
bool reads_last(const run_config& config, int64_t vocab) {
  const draft_section& d = config.draft;
  const bool some = d.vocab_size != 0 && d.vocab_size != vocab;
  if (terms_of(config.loss).teacher() || some || !d.vocab_map.empty()) return true;
  return d.init != "random" && d.init != "target" && !read_drafter_config(d.init).draft_ids.empty();
}

// Once more where a value is not finite: a fault passes, wrong weights stay.
std::vector<at::Tensor> capture_row(const target& model,
                                    const batch& b,
                                    const capture_manifest& wanted) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    target::captured c = model.capture(b.input_ids, b.doc_offsets, wanted.taps, wanted.last);
    if (wanted.last) c.taps.push_back(std::move(c.last_hidden));
    auto states = to_host(c.taps);
    if (all_finite(states)) return states;
  }
  throw std::runtime_error(
      fmt::format("hidden states of row {} are not finite (documents {}): the target's weights, "
                  "dtype or these documents are at fault",
                  b.row,
                  fmt::join(b.documents, ", ")));
}

int run_capture_command(const capture_options& given, const std::vector<std::string>& overrides) {
  const run_config config = load_run_config(given.file, overrides);
  set_up_log({.level = config.log.level, .file = {}});
  const std::vector<at::Device> lanes = devices_of(config.layout.targets);
  const target_config shape = read_target_config(config.target.path);
  const drafter_config drafter = make_drafter_config(config.draft, shape);
  const auto dtype = dtype_of(config);
  const batch_source source(
      read_token_shards({config.data.train.begin(), config.data.train.end()}, shape.vocab),
      config.data.row_tokens,
      config.data.anchors,
      config.run.seed);
  const bool last =
      given.last || given.form == capture_form_speculators || reads_last(config, shape.vocab);
  capture_manifest wanted = make_manifest(source, drafter.taps, last);
  wanted.form = given.form;
  wanted.dtype = name_of(dtype);
  wanted.width = shape.hidden;
  wanted.threads = config.layout.target_threads;
  wanted.device = c10::DeviceTypeName(lanes.front().type(), true);
  wanted.program = program_version() + " " + git_commit();
  wanted.complete = true;

  std::unordered_map<at::Device, std::shared_ptr<const target>> models;
  for (const at::Device& device : lanes)
    if (!models.contains(device)) models[device] = target::load(config.target.path, dtype, device);
  wanted.target_hash = models.begin()->second->content_hash();
  const uint64_t missing = missing_capture_bytes(given.out, wanted, source);
  check_capture_room(given.out, missing);
  spdlog::info("{} documents in {} rows of {} tokens, {} tensors of width {} in {}: {} to write",
               wanted.documents,
               wanted.rows,
               wanted.row_tokens,
               wanted.tensors(),
               wanted.width,
               wanted.dtype,
               bytes_text(missing));

  const stop_signal signals;
  task_progress progress("capture", "rows", static_cast<uint64_t>(wanted.rows));
  const capture_report report = run_capture(
      given.out,
      wanted,
      source,
      [&](const batch& b, at::Device device) { return capture_row(*models.at(device), b, wanted); },
      lanes,
      [&](const capture_progress& p) {
        progress.update(static_cast<uint64_t>(p.rows_done));
        return !signals.asked();
      });
  progress.finish();
  if (report.rows_found > 0)
    fmt::print("{} of {} rows were there already\n", report.rows_found, report.rows);
  if (!report.complete) {
    fmt::print("stopped after {} of {} rows; the same command goes on\n",
               report.rows_found + report.rows_made,
               report.rows);
    return 0;
  }
  fmt::print("{}: {} rows, {} documents, {}{}\ntrain with: --data.hidden_states={}\n",
             given.out,
             report.rows,
             wanted.documents,
             bytes_text(report.bytes),
             report.rows_made > 0
                 ? ", " + rate_text(static_cast<double>(report.rows_made * wanted.row_tokens) /
                                        std::max(1e-9, report.seconds),
                                    "tokens")
                 : std::string(),
             given.out);
  return 0;
}

}  // namespace

void add_capture_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<capture_options>();
  CLI::App* command = app.add_subcommand(
      "capture", "Write the target's hidden states of a run's data to disk, to train without it");
  accept_overrides(*command);
  command->footer(
      "Takes the target, its taps, the data, row length and target lanes from the configuration "
      "of\n"
      "the run that shall be trained. Finished rows stay: after Ctrl-C or a power cut the same\n"
      "command goes on.\n"
      "  rows         one file of packed rows: training gives the weights of the online run, to\n"
      "               the bit\n"
      "  speculators  a dataset that speculators trains from: hidden_states/hs_I.safetensors with\n"
      "               hidden_states [tokens, taps + 1, width] and token_ids, beside an Arrow "
      "table\n"
      "               of input_ids, loss_mask and seq_len; the same bits\n\n"
      "Any key of the configuration as --section.key=value, e.g. --target.dtype=bf16\n\n"
      "Example:\n  dflash capture my.toml --out states\n"
      "  dflash train my.toml --data.hidden_states=states");
  command->add_option("FILE", given->file, "TOML file with the run's configuration")->required();
  command->add_option("--out", given->out, "folder to write")->required();
  command->add_option("--form", given->form, "rows or speculators")
      ->check(CLI::IsMember({capture_form_rows, capture_form_speculators}))
      ->capture_default_str();
  command->add_flag("--last",
                    given->last,
                    "rows: keep the last hidden state too, although the run's loss does not read "
                    "it (all but ce would)");
  command->callback([given, command, &action] {
    action = [given, command] { return run_capture_command(*given, overrides_of(*command)); };
  });
}

}  // namespace dflash

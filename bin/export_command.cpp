// `dflash export`: a trained drafter as a z-lab folder for other programs.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "bin/commands.hpp"
#include "bin/drafter_source.hpp"
#include "config/error.hpp"
#include "data/safetensors.hpp"
#include "model/drafter.hpp"
#include "model/export.hpp"

namespace dflash {

namespace {

struct export_options {
  std::string from, out;
  std::string dtype = "bf16";
  std::string format = "zlab";
};

// The fp32 weights of a checkpoint, which it holds beside its drafter in the export dtype: their
// moving average if the run kept one, as in its drafter, else the masters.
drafter_weights load_masters(const std::filesystem::path& file, const drafter_config& config) {
  const auto stored = safetensors_file::open(file);
  auto weights = make_drafter_weights(config, at::kFloat);
  const std::string kind = stored.find("ema.fc.weight") == nullptr ? "master." : "ema.";
  for (auto& [name, tensor] : named_tensors(weights)) {
    const auto& master = stored.at(kind + name);
    if (master.dtype != st_dtype::f32 || master.shape != tensor->sizes().vec())
      throw error("a weight is not fp32 of shape " + c10::str(tensor->sizes()),
                  file.string() + ", " + kind + name);
    std::memcpy(tensor->mutable_data_ptr(), stored.bytes(master).data(), tensor->nbytes());
  }
  return weights;
}

int run_export(const export_options& options) {
  const auto dtype = options.dtype == "fp32" ? at::kFloat : at::kBFloat16;
  const auto folder = find_drafter_folder(options.from);
  drafter_config config;
  auto weights = load_drafter(folder, config);
  const auto masters = folder / "trainer_state.safetensors";
  if (dtype == at::kFloat && std::filesystem::exists(masters))
    weights = load_masters(masters, config);
  write_zlab_folder(options.out, config, weights, dtype, read_zlab_extras(folder));
  std::printf("%s: %lld layers, block size %lld, %zu taps, %s, from %s\n",
              options.out.c_str(),
              static_cast<long long>(config.layers),
              static_cast<long long>(config.block_size),
              config.taps.size(),
              options.dtype.c_str(),
              folder.c_str());
  return 0;
}

}  // namespace

void add_export_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<export_options>();
  CLI::App* command =
      app.add_subcommand("export", "Write a drafter in the form that other programs read");
  command->add_option("FROM", given->from, "run, checkpoint or z-lab folder")->required();
  command->add_option("--out", given->out, "folder to write; a former export there is replaced")
      ->required();
  command->add_option("--dtype", given->dtype, "stored type of the weights")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  command->add_option("--format", given->format, "zlab: config.json and model.safetensors")
      ->check(CLI::IsMember({"zlab"}))
      ->capture_default_str();
  command->callback([given, &action] { action = [given] { return run_export(*given); }; });
}

}  // namespace dflash

// `dflash export`: a trained drafter as a z-lab folder for other programs.
#include <cstdio>
#include <memory>
#include <string>

#include "bin/commands.hpp"
#include "bin/drafter_source.hpp"
#include "config/error.hpp"
#include "model/drafter.hpp"
#include "model/export.hpp"

namespace dflash {

namespace {

struct export_options {
  std::string from, out;
  std::string dtype = "bf16";
  std::string format = "zlab";
};

int run_export(const export_options& options) {
  const auto dtype = options.dtype == "fp32" ? at::kFloat : at::kBFloat16;
  const auto folder = find_drafter_folder(options.from);
  drafter_config config;
  const auto weights = load_drafter(folder, config);
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

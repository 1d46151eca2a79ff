// `dflash export`: a trained drafter as a folder for other programs, in either published form.
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "bin/commands.hpp"
#include "bin/drafter_source.hpp"
#include "config/error.hpp"
#include "config/run_config.hpp"
#include "data/safetensors.hpp"
#include "model/draft_vocab.hpp"
#include "model/drafter.hpp"
#include "model/export.hpp"
#include "model/folder.hpp"
#include "model/target_config.hpp"

namespace dflash {

namespace {

namespace fs = std::filesystem;

struct export_options {
  std::string from, out;
  std::string dtype = "bf16";
  std::string form = "zlab";
  std::string target, verifier;
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

// The target's head, for a drafter that does not carry the rows of its draft vocabulary.
at::Tensor rows_of_target(const std::string& folder, const drafter_config& config) {
  auto files = model_folder::open(folder);
  const char* tied = "model.embed_tokens.weight";
  const char* name = files.has("lm_head.weight") ? "lm_head.weight" : tied;
  return draft_head(files.load(name, {config.vocab, config.hidden}, at::kFloat), config);
}

// What the form wants to know of the target: from --target, else from the drafter's own folder.
void complete(const export_options& options,
              stored_drafter& drafter,
              drafter_export& how,
              const fs::path& folder) {
  const bool names_target = how.form == drafter_form::speculators;
  std::string target = options.target;
  if (target.empty() && names_target && how.extras.verifier.empty() &&
      fs::exists(folder / "config.toml")) {  // a checkpoint
    target = parse_run_config(folder / "config.toml").target.path;
    if (!fs::exists(target))
      throw error("the run's target is not there any more: " + target,
                  folder.string(),
                  "name its folder with --target");
  }
  if (!target.empty()) {
    const target_config shape = read_target_config(target);
    check_drafter_fits(drafter.config, shape, folder.string());
    drafter.config.num_target_layers = shape.layers;
    set_verifier(how.extras, target);
    if (!drafter.config.draft_ids.empty() && !how.head.defined())
      how.head = rows_of_target(target, drafter.config);
  }
  if (!options.verifier.empty()) {
    if (!names_target)
      throw error("z-lab's form names no target", "--verifier", "use it with --form speculators");
    how.extras.verifier = options.verifier;
  }
  if (!drafter.config.draft_ids.empty() && !how.head.defined())
    throw error("the drafter does not carry the head of its draft vocabulary",
                folder.string(),
                "name the target's folder with --target");
  if (drafter.embedding.defined())
    spdlog::warn("{}: embed_tokens.weight is left out: loaders take the target's", folder.string());
}

int run_export(const export_options& options) {
  const auto folder = find_drafter_folder(options.from);
  auto drafter = read_drafter(folder);
  drafter_export how{
      .form = options.form == "zlab" ? drafter_form::zlab : drafter_form::speculators,
      .dtype = options.dtype == "fp32" ? at::kFloat : at::kBFloat16,
      .extras = read_drafter_extras(folder),
      .head = drafter.head};
  complete(options, drafter, how, folder);
  const auto masters = folder / "trainer_state.safetensors";
  if (how.dtype == at::kFloat && fs::exists(masters))
    drafter.weights = load_masters(masters, drafter.config);
  write_drafter_folder(options.out, drafter.config, drafter.weights, how);
  std::printf("%s: %lld layers, block size %lld, %zu taps, %s, %s's form, from %s\n",
              options.out.c_str(),
              static_cast<long long>(drafter.config.layers),
              static_cast<long long>(drafter.config.block_size),
              drafter.config.taps.size(),
              options.dtype.c_str(),
              how.form == drafter_form::zlab ? "z-lab" : "speculators",
              folder.c_str());
  return 0;
}

}  // namespace

void add_export_command(CLI::App& app, std::function<int()>& action) {
  auto given = std::make_shared<export_options>();
  CLI::App* command =
      app.add_subcommand("export", "Write a drafter in the form that other programs read");
  command->add_option("FROM", given->from, "run, checkpoint or drafter folder")->required();
  command->add_option("--out", given->out, "folder to write; a former export there is replaced")
      ->required();
  command->add_option("--dtype", given->dtype, "stored type of the weights")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  command
      ->add_option("--form",
                   given->form,
                   "zlab (z-lab's package, vLLM, SGLang, llama.cpp) or speculators (also vLLM)")
      ->check(CLI::IsMember({"zlab", "speculators"}))
      ->capture_default_str();
  command->add_option("--target", given->target, "the target's folder, where FROM does not say it");
  command->add_option("--verifier",
                      given->verifier,
                      "name of the target in speculators' form; default: its folder");
  command->callback([given, &action] { action = [given] { return run_export(*given); }; });
}

}  // namespace dflash

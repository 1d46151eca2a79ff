#include "bin/checkpoint_saver.hpp"

#include <spdlog/spdlog.h>

#include <exception>
#include <utility>

#include "bin/version.hpp"
#include "model/checkpoint.hpp"
#include "model/checkpoint_retention.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

checkpoint_options options_of(const training_setup& s) {
  checkpoint_options o;
  o.config_toml = to_toml(s.config);
  o.export_dtype = s.config.checkpoint.export_dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  const target_config& t = s.model->config();
  if (t.bos >= 0) o.extras.bos = t.bos;
  o.extras.eos = t.eos;
  o.extras.target_hash = s.model->content_hash();
  set_verifier(o.extras, s.config.target.path);
  return o;
}

checkpoint_state state_of(const training_setup& s) {
  checkpoint_state base;
  base.total_steps = s.parts.plan->total_steps();
  base.target_hash = s.model->content_hash();
  base.data_hash = s.data_hash();
  base.dtype = name_of(s.dtype);
  base.device = "cpu";
  base.program = program_version() + " " + git_commit();
  base.drafters = s.config.layout.drafters.size();
  base.drafter_threads = static_cast<uint64_t>(s.parts.drafter_threads);
  base.target_threads = static_cast<uint64_t>(s.parts.target_threads);
  return base;
}

}  // namespace

checkpoint_writer checkpoint_saver(const training_setup& s, const fs::path& checkpoints) {
  checkpoint_retention rule;
  rule.keep = s.config.checkpoint.keep;
  rule.keep_every = static_cast<uint64_t>(s.config.checkpoint.keep_every);
  return [base = state_of(s), options = options_of(s), checkpoints, rule](
             const save_request& request, const trainer_snapshot& copy) {
    checkpoint_state state = base;
    state.steps = request.steps;
    state.next_k = request.next_k;
    state.dropped = request.dropped;
    state.skipped_steps = request.skipped_steps;
    state.losses = {request.loss_count, request.loss_mean, request.loss_variance};
    if (!fs::exists(checkpoints.parent_path()))
      spdlog::error("{} has vanished: it is made again, without what was in it",
                    checkpoints.parent_path().string());
    write_checkpoint(checkpoints, state, copy, options);
    try {
      checkpoint_retention now = rule;
      now.kept_steps = request.kept_steps;
      prune_checkpoints(checkpoints, now);
    } catch (const std::exception& e) {
      spdlog::error("old checkpoints could not be removed: {}", e.what());
    }
  };
}

}  // namespace dflash

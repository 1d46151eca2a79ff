#include "bin/sim_setup.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "config/error.hpp"
#include "model/target_config.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

struct sim_sizes {
  int64_t hidden = 0, layers = 0, vocab = 0;
};

sim_sizes sizes_of(const run_config& c) {
  sim_sizes sizes{c.sim.hidden_size, c.sim.layers, c.sim.vocab_size};
  if (sizes.hidden == 0 || sizes.layers == 0 || sizes.vocab == 0) {
    const target_config target = read_target_config(c.target.path);
    if (sizes.hidden == 0) sizes.hidden = target.hidden;
    if (sizes.layers == 0) sizes.layers = target.layers;
    if (sizes.vocab == 0) sizes.vocab = target.vocab;
  }
  if (c.draft.taps.front() < 0 || c.draft.taps.back() >= sizes.layers)
    throw error(
        fmt::format("tap {}, but the target has {} layers", c.draft.taps.back(), sizes.layers),
        "draft.taps",
        fmt::format("layers are counted from 0: the last one is {}", sizes.layers - 1));
  return sizes;
}

// Documents of a whole row each, all of it supervised.
token_set made_up_rows(const run_config& c) {
  const auto tokens = static_cast<size_t>(c.data.row_tokens);
  const std::vector<int32_t> ids(tokens, 0);
  const std::vector<uint8_t> mask(tokens, 1);
  token_documents text;
  for (int64_t row = 0; row < c.sim.rows; ++row) text.append(ids, mask);
  return text;
}

service_law law_of(const std::string& text) {
  if (text == "exponential") return service_law::exponential;
  return text == "uniform" ? service_law::uniform : service_law::constant;
}

}  // namespace

sim_times sim_times_of(const sim_section& sim) {
  sim_times t = sim_times_of(law_of(sim.law), sim.seed, sim.spread);
  t.target.seconds = sim.target_seconds;
  t.postprocess.seconds = sim.postprocess_seconds;
  t.drafter.seconds = sim.drafter_seconds;
  t.reduction.seconds = sim.reduction_seconds;
  t.update.seconds = sim.update_seconds;
  return t;
}

training_setup prepare_simulated(const run_config& config) {
  training_setup s;
  s.config = config;
  pipeline_parts& p = s.parts;
  const run_config& c = s.config;
  const sim_sizes sizes = sizes_of(c);
  s.dtype = c.target.dtype == "fp32" ? compute_dtype::fp32 : compute_dtype::bf16;
  const std::vector<fs::path> shards(c.data.train.begin(), c.data.train.end());
  p.source = std::make_shared<const batch_source>(
      shards.empty() ? made_up_rows(c) : read_token_shards(shards, sizes.vocab),
      c.data.row_tokens,
      c.data.anchors,
      c.run.seed,
      0,
      prefix_draw{.ratio = c.loss.prefix, .block_size = c.draft.block_size});
  const auto drafters = static_cast<int64_t>(c.layout.drafters.size());
  p.plan.emplace(p.source->rows(), c.data.epochs, drafters, c.optim.accumulation, c.optim.steps);
  check_schedule(c.optim, p.plan->total_steps());
  p.terms = terms_of(c.loss);
  p.shape = {c.data.row_tokens,
             sizes.hidden,
             static_cast<int64_t>(c.draft.taps.size()),
             p.terms.teacher() || c.draft.vocab_size > 0,
             scalar_type(s.dtype)};
  p.drafter_dtype = p.shape.dtype;
  p.block_size = c.draft.block_size;
  const bool all_slide = !c.draft.layer_types.empty() &&
                         std::all_of(c.draft.layer_types.begin(),
                                     c.draft.layer_types.end(),
                                     [](const auto& t) { return t == "sliding_attention"; });
  p.window = all_slide ? c.draft.sliding_window : 0;
  p.limits = derive_limits(static_cast<uint32_t>(c.layout.targets.size()),
                           0,
                           static_cast<uint32_t>(drafters),
                           p.shape.bytes(),
                           c.layout.max_in_flight);
  p.metrics_every = 1 << 30;  // nothing to measure
  p.profile_interval = static_cast<uint64_t>(c.profile.interval);
  s.padding_permille = static_cast<int64_t>(p.source->padding_share() * 1000);
  add_sim_lanes(p, sim_times_of(c.sim));
  return s;
}

std::vector<std::pair<std::string, std::string>> simulated_lines(const training_setup& setup) {
  const sim_section& sim = setup.config.sim;
  const auto time = [](double seconds) {
    return duration_text(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
  };
  return {{"target",
           fmt::format("simulated, hidden size {}, {}: {} a batch, postprocess {}",
                       setup.parts.shape.width,
                       name_of(setup.dtype),
                       time(sim.target_seconds),
                       time(sim.postprocess_seconds))},
          {"drafter",
           fmt::format("simulated, block of {}, taps {}: {} a batch, reduction {}, update {}",
                       setup.config.draft.block_size,
                       fmt::join(setup.config.draft.taps, " "),
                       time(sim.drafter_seconds),
                       time(sim.reduction_seconds),
                       time(sim.update_seconds))},
          {"", fmt::format("{} times; nothing is trained, no checkpoint is written", sim.law)}};
}

}  // namespace dflash

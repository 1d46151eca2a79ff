#include "bin/training_setup.hpp"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "bin/device_option.hpp"
#include "bin/flops_setup.hpp"
#include "bin/lane_work.hpp"
#include "bin/own_checkpoint.hpp"
#include "bin/sim_setup.hpp"
#include "bin/version.hpp"
#include "config/error.hpp"
#include "data/token_counts.hpp"
#include "model/captured_states.hpp"
#include "model/schedule.hpp"
#include "model/trainer_snapshot.hpp"
#include "model/vocab_map.hpp"
#include "observe/format.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

bool is_here(const std::string& lane) {
  return parse_lane(lane).node.empty();
}

bool is_gpu(const std::string& lane) {
  return !device_of_lane(parse_lane(lane)).is_cpu();
}

// Lanes that this program has a device for.
void check_lanes(const std::vector<std::string>& lanes, const std::string& key) {
  for (const std::string& lane : lanes) check_device_of_lane(lane, key);
}

// One copy of the weights a device, of all that its lanes need.
class models_by_device {
public:
  explicit models_by_device(const training_setup& s) : setup_(s) {}

  std::shared_ptr<const target> of(const std::string& lane) {
    if (!is_gpu(lane)) return setup_.model;
    auto& model = loaded_[lane];
    if (!model) {
      const auto& targets = setup_.config.layout.targets;
      const bool captures =
          !setup_.from_disk() && std::find(targets.begin(), targets.end(), lane) != targets.end();
      model = target::load(setup_.config.target.path,
                           setup_.dtype,
                           device_of_lane(parse_lane(lane)),
                           captures ? target_parts::all : target_parts::borrowed);
    }
    return model;
  }

private:
  const training_setup& setup_;
  std::map<std::string, std::shared_ptr<const target>> loaded_;
};

// Names all that decides the bytes of kept hidden states.
std::string fingerprint(const training_setup& s, const batch_source& source) {
  return fmt::format("{} {} {} {} {} {} threads {}",
                     s.model->content_hash(),
                     name_of(s.dtype),
                     fmt::join(s.drafter.taps, ","),
                     s.parts.shape.last,
                     s.data_hash(),
                     source.row_tokens(),
                     s.parts.target_threads);
}

// The tokens of draft.vocab_map; a drafter to start from may have no others.
void take_vocab_map(training_setup& s) {
  const draft_section& draft = s.config.draft;
  drafter_config& d = s.drafter;
  auto ids = read_vocab_map(draft.vocab_map, d.vocab, draft.vocab_size);
  if (draft.vocab_size != 0 && draft.vocab_size != std::ssize(ids))
    throw error(fmt::format("a draft vocabulary of {} tokens, but draft.vocab_map has {}",
                            draft.vocab_size,
                            ids.size()),
                "draft.vocab_size",
                "0: what there is");
  if (!d.draft_ids.empty() && d.draft_ids != ids)
    throw error(fmt::format("the {} tokens are others than the {} of the drafter in draft.init",
                            ids.size(),
                            d.draft_vocab()),
                "draft.vocab_map",
                "leave draft.vocab_map out, or start from another drafter");
  if (std::ssize(ids) < d.vocab) d.draft_ids = std::move(ids);
}

// The draft.vocab_size most frequent tokens of the data, or what the drafter to start from has.
void choose_draft_vocab(training_setup& s) {
  const int64_t wanted = s.config.draft.vocab_size;
  drafter_config& d = s.drafter;
  const auto refuse = [&](const std::string& what) {
    throw error(fmt::format("a draft vocabulary of {} tokens, but {}", wanted, what),
                "draft.vocab_size",
                "0: what there is");
  };
  if (wanted > d.vocab) refuse(fmt::format("the target has {}", d.vocab));
  const bool mapped = !s.config.draft.vocab_map.empty();
  if (mapped) take_vocab_map(s);
  if (!d.draft_ids.empty() && wanted != 0 && wanted != d.draft_vocab())
    refuse(fmt::format("the drafter in draft.init has {}", d.draft_vocab()));
  if (d.draft_ids.empty() && (mapped || wanted == 0 || wanted == d.vocab)) return;
  const auto counts = supervised_counts(s.parts.source->documents(), d.vocab);
  if (d.draft_ids.empty()) d.draft_ids = most_frequent_tokens(counts, wanted);
  int64_t covered = 0;
  for (const int32_t id : d.draft_ids) covered += counts[static_cast<size_t>(id)];
  s.covered_share =
      static_cast<double>(covered) / static_cast<double>(s.parts.source->documents().supervised());
}

void make_trainers(training_setup& s, models_by_device& models) {
  const run_config& c = s.config;
  const auto& lanes = c.layout.drafters;
  s.trainers.resize(lanes.size());
  if (std::none_of(lanes.begin(), lanes.end(), is_here)) return;
  const drafter_weights start = start_weights(s);
  for (size_t i = 0; i < lanes.size(); ++i)
    if (is_here(lanes[i])) s.trainers[i] = start_trainer(s, start, models.of(lanes[i]));
  for (const std::string& lane : lanes)
    s.parts.drafter_devices.push_back(device_of_lane(parse_lane(lane)));
}

void make_targets(training_setup& s, models_by_device& models) {
  if (s.from_disk()) return;
  for (const std::string& lane : s.config.layout.targets) {
    const auto stages = is_here(lane) ? std::make_shared<stage_timer>() : nullptr;
    s.parts.target_stages.push_back(stages);
    s.parts.target_devices.push_back(device_of_lane(parse_lane(lane)));
    s.parts.targets.push_back(
        is_here(lane) ? capture_by(models.of(lane), s.drafter.taps, s.parts.shape.last, stages)
                      : capture_function());
  }
}

// The same bits for any number of targets are promised for one kind of device.
void say_if_mixed(const run_config& c) {
  const auto& targets = c.layout.targets;
  const auto gpus = std::count_if(targets.begin(), targets.end(), is_gpu);
  if (c.data.hidden_states.empty() && gpus > 0 && gpus < std::ssize(targets))
    spdlog::warn(
        "layout.targets has CPUs and GPUs, which round differently: which one makes a batch "
        "depends "
        "on their pace, so this run will not give the same bits twice");
}

// Progress of the checkpoint, compared with what this run is.
void take_over(training_setup& s) {
  const checkpoint_state& state = s.resumed_from.state;
  pipeline_parts& p = s.parts;
  const std::string& folder = s.resumed_from.newest->string();
  if (state.target_hash != s.model->content_hash())
    throw error(fmt::format("the target is another one: content hash {} instead of {}",
                            s.model->content_hash(),
                            state.target_hash),
                folder,
                "resume with the target that the run began with");
  if (state.data_hash != s.data_hash())
    throw error(fmt::format("the training documents are others: checksum {} instead of {}",
                            s.data_hash(),
                            state.data_hash),
                folder,
                "resume with the shards of data.train as the run began with them");
  if (read_drafter_config(*s.resumed_from.newest).draft_ids != s.drafter.draft_ids)
    throw error("the draft vocabulary is another one",
                folder,
                "resume with draft.init and draft.vocab_map as the run began with them");
  if (state.dtype != name_of(s.dtype))
    throw error(
        fmt::format(
            "the run computed in {}, this machine would in {}", state.dtype, name_of(s.dtype)),
        folder,
        "set target.dtype = \"" + state.dtype + "\"");
  const uint64_t total = p.plan->total_steps();
  const bool fits = state.steps <= total && state.steps > 0 &&
                    state.next_k == p.plan->step(state.steps - 1).last_k &&
                    state.total_steps == total;
  if (!fits)
    throw error(
        fmt::format("the data gives another plan: {} steps instead of {}, batch {} at step {}",
                    total,
                    state.total_steps,
                    state.next_k,
                    state.steps),
        folder,
        "resume with the shards that the run began with");
  p.first_step = p.saved_step = state.steps;
  p.skipped_steps = state.skipped_steps;
  p.losses = state.losses;
  p.dropped = state.dropped;
}

// Captured hidden states in the place of targets.
void open_states(training_setup& s) {
  if (!s.from_disk()) return;
  capture_manifest wanted = make_manifest(*s.parts.source, s.drafter.taps, s.parts.shape.last);
  wanted.target_hash = s.model->content_hash();
  wanted.dtype = name_of(s.dtype);
  wanted.width = s.parts.shape.width;
  const auto states = open_captured_states(s.config.data.hidden_states, wanted, s.parts.source);
  s.parts.read_hidden = states.read;
  s.states_form = states.form;
  s.states_bytes = states.bytes;
  if (!states.by_us)
    spdlog::warn("{}: no capture.json: whether the states are of this target cannot be checked",
                 s.config.data.hidden_states);
}

void keep_states(training_setup& s, const fs::path& kept_states) {
  pipeline_parts& p = s.parts;
  const bool later_epochs = p.plan->total_batches() > static_cast<uint64_t>(p.source->rows());
  if (s.config.data.keep_hidden_states == 0 || !later_epochs) return;
  p.store = std::make_shared<hidden_store>(kept_states,
                                           p.shape.bytes(),
                                           p.source->rows(),
                                           s.config.data.keep_hidden_states,
                                           fingerprint(s, *p.source));
  if (p.store->capacity() < p.source->rows())
    spdlog::warn(
        "data.keep_hidden_states holds {} of {} rows: the target runs again for the others",
        p.store->capacity(),
        p.source->rows());
}

}  // namespace

drafter_weights start_weights(const training_setup& s) {
  const run_config& c = s.config;
  return init_drafter(
      s.drafter, c.draft.init, *s.model, c.run.seed, c.draft.norm_scale, c.target.path);
}

std::shared_ptr<drafter_trainer> start_trainer(const training_setup& s,
                                               const drafter_weights& start,
                                               const std::shared_ptr<const target>& model) {
  auto trainer =
      make_trainer(s.config, s.drafter, start, model, s.dtype, s.parts.plan->total_steps());
  if (s.resumed_from.newest)
    load_checkpoint(*s.resumed_from.newest, s.resumed_from.state, *trainer);
  return trainer;
}

training_setup outline_training(const run_config& config, const fs::path& checkpoints) {
  if (is_simulated(config)) return prepare_simulated(config);
  training_setup s;
  s.config = config;
  pipeline_parts& p = s.parts;
  const run_config& c = s.config;
  p.target_threads = c.layout.target_threads;
  p.drafter_threads = c.layout.drafter_threads;
  at::set_num_threads(static_cast<int>(p.drafter_threads));

  const target_config target_shape = read_target_config(c.target.path);
  s.drafter = make_drafter_config(c.draft, target_shape);
  if (c.draft.init != "random" && c.draft.init != "target")
    s.drafter = adopt_drafter(s.drafter, c.draft.init);
  const auto any_gpu = [](const auto& lanes) {
    return std::any_of(lanes.begin(), lanes.end(), is_gpu);
  };
  const bool gpu = any_gpu(c.layout.targets) || any_gpu(c.layout.drafters);
  s.dtype = gpu && c.target.dtype == "auto" ? compute_dtype::bf16  // what GPUs are made for
                                            : choose_compute_dtype(c.target.dtype);
  if (c.run.resume) {
    s.resumed_from = choose_checkpoint(checkpoints, own_config(c));
    if (s.resumed_from.newest) check_resumed_config(c, s.resumed_from);
  }
  const std::vector<fs::path> shards(c.data.train.begin(), c.data.train.end());
  p.source = std::make_shared<const batch_source>(
      read_token_shards(shards, target_shape.vocab),
      c.data.row_tokens,
      c.data.anchors,
      c.run.seed,
      0,
      prefix_draw{.ratio = c.loss.prefix, .block_size = s.drafter.block_size});
  choose_draft_vocab(s);
  const auto lanes = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  p.plan.emplace(p.source->rows(),
                 c.data.epochs,
                 lanes(c.layout.drafters),
                 c.optim.accumulation,
                 c.optim.steps);
  check_schedule(c.optim, p.plan->total_steps());

  p.terms = terms_of(c.loss);
  p.shape.row_tokens = c.data.row_tokens;
  p.shape.width = target_shape.hidden;
  p.shape.taps = lanes(s.drafter.taps);
  // Labels outside a draft vocabulary are the target's best token of it.
  p.shape.last = p.terms.teacher() || !s.drafter.draft_ids.empty();
  p.shape.dtype = p.drafter_dtype = scalar_type(s.dtype);
  p.noise = c.data.noise;
  p.seed = c.run.seed;
  p.block_size = s.drafter.block_size;
  const bool all_slide =
      std::all_of(s.drafter.sliding.begin(), s.drafter.sliding.end(), [](bool b) { return b; });
  p.window = all_slide ? s.drafter.sliding_window : 0;
  const bool keeps = c.data.keep_hidden_states > 0 &&
                     p.plan->total_batches() > static_cast<uint64_t>(p.source->rows());
  p.limits = derive_limits(s.from_disk() ? 0 : static_cast<uint32_t>(c.layout.targets.size()),
                           keeps || s.from_disk() ? 1 : 0,
                           static_cast<uint32_t>(c.layout.drafters.size()),
                           p.shape.bytes(),
                           c.layout.max_in_flight);
  p.saves.every = static_cast<uint64_t>(c.checkpoint.every);
  p.saves.keep_every = static_cast<uint64_t>(c.checkpoint.keep_every);
  p.skip_spikes = c.optim.skip_spikes;
  p.metrics_every = static_cast<uint64_t>(c.metrics.every);
  set_flops(s, target_shape);
  p.profile_interval = static_cast<uint64_t>(c.profile.interval);
  s.padding_permille = static_cast<int64_t>(p.source->padding_share() * 1000);

  s.memory = memory_shapes_of(c, target_shape, s.drafter, s.dtype, p.source->rows());
  if (c.eval.every > 0) {
    s.evaluation = outline_evaluation(c, target_shape, p.shape, checkpoints);
    s.memory.evaluation = s.evaluation->shapes;
  }
  return s;
}

training_setup prepare_training(const run_config& config,
                                const fs::path& checkpoints,
                                const fs::path& kept_states) {
  if (config.data.hidden_states.empty()) check_lanes(config.layout.targets, "layout.targets");
  check_lanes(config.layout.drafters, "layout.drafters");
  training_setup s = outline_training(config, checkpoints);
  if (is_simulated(config)) return s;
  const run_config& c = s.config;
  pipeline_parts& p = s.parts;
  check_memory(c, s.memory);
  // Evaluations run the target even where its hidden states come from elsewhere.
  const auto& lanes = c.layout.targets;
  const bool captures = !s.from_disk() && std::any_of(lanes.begin(), lanes.end(), [](auto& lane) {
    return is_here(lane) && !is_gpu(lane);
  });
  const bool runs_target = captures || c.eval.every > 0;
  s.model = target::load(
      c.target.path, s.dtype, at::kCPU, runs_target ? target_parts::all : target_parts::borrowed);
  open_states(s);
  if (s.resumed_from.newest)
    drop_foreign_checkpoint(s.resumed_from, c, checkpoints, s.model->content_hash(), s.data_hash());
  if (s.resumed_from.newest) take_over(s);
  if (s.evaluation) {
    give_model(*s.evaluation, c, s.model);
    add_evaluation(*s.evaluation, c, checkpoints, p.first_step, p.plan->total_steps(), p);
  }
  models_by_device models(s);
  make_trainers(s, models);
  make_targets(s, models);
  say_if_mixed(c);
  keep_states(s, kept_states);
  return s;
}

std::string training_setup::data_hash() const {
  return fmt::format("{:08x}", parts.source->documents().checksum());
}

std::string training_setup::plan_text() const {
  const pipeline_limits& l = parts.limits;
  const step_plan& plan = *parts.plan;
  const auto& o = config.optim;
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    text += fmt::format("  {:<11} {}\n", name, value);
  };
  if (is_simulated(config)) {
    for (const auto& [name, value] : simulated_lines(*this)) line(name, value);
  } else {
    line("target", fmt::format("{}, {}", config.target.path, name_of(dtype)));
    line("drafter",
         fmt::format("{} layers, block of {}, taps {}, {} parameters, from {}",
                     drafter.layers,
                     drafter.block_size,
                     fmt::join(drafter.taps, " "),
                     count_text(static_cast<double>(drafter_parameter_count(drafter))),
                     config.draft.init));
  }
  if (!drafter.draft_ids.empty())
    line("",
         fmt::format("drafts {} of {} tokens, {:.2f} % of the supervised ones",
                     drafter.draft_vocab(),
                     drafter.vocab,
                     100 * covered_share));
  line("data",
       fmt::format("{} documents in {} rows of {} tokens ({}.{} % padding), {} anchors each",
                   parts.source->documents().size(),
                   parts.source->rows(),
                   parts.source->row_tokens(),
                   padding_permille / 10,
                   padding_permille % 10,
                   parts.source->anchors()));
  line("steps",
       fmt::format("{} of {} batches ({} drafters x {}), {} batches in all{}",
                   plan.total_steps(),
                   config.layout.drafters.size() * static_cast<size_t>(o.accumulation),
                   config.layout.drafters.size(),
                   o.accumulation,
                   plan.total_batches(),
                   parts.first_step > 0 ? fmt::format(", {} done", parts.first_step) : ""));
  const auto group = static_cast<int64_t>(config.layout.drafters.size()) * o.accumulation;
  if (parts.source->rows() % group != 0)
    line("",
         fmt::format("the last step of each epoch has {} batches, normalised by their own weights",
                     parts.source->rows() % group));
  line("layout",
       (from_disk() ? std::string("no targets")
                    : fmt::format("{} targets x {} threads", l.targets, parts.target_threads)) +
           fmt::format(", {} drafters x {} threads", l.drafters, parts.drafter_threads));
  std::vector<std::string> away;
  for (const auto* list : {&config.layout.targets, &config.layout.drafters})
    for (const std::string& lane : *list)
      if (!is_here(lane)) away.push_back(lane);
  if (!away.empty()) line("", fmt::format("of other hosts: {}", fmt::join(away, " ")));
  if (!states_form.empty())
    line("states",
         fmt::format("{}, {}, {} on disk",
                     config.data.hidden_states,
                     states_form == capture_form_rows ? "packed rows" : "a file per document",
                     bytes_text(states_bytes)));
  line("in flight",
       fmt::format("at most {}: {} a batch, {} batches per drafter, {} capture slots per {}",
                   bytes_text(l.total_bytes()),
                   bytes_text(l.batch_bytes),
                   l.drafter_batches,
                   l.capture_slots,
                   l.targets == 0  ? "reader"
                   : l.readers > 0 ? "target and for the reader"
                                   : "target"));
  if (!l.cost.empty()) line("", "lowered by layout.max_in_flight: " + l.cost);
  const auto& saves = config.checkpoint;
  if (!trainers.empty())  // none of simulated lanes
    line(
        "saves",
        (saves.every > 0 ? fmt::format("every {} steps", saves.every) : std::string("at the end")) +
            fmt::format(", the newest {} stay", saves.keep) +
            (saves.keep_every > 0 ? fmt::format(", multiples of {} too", saves.keep_every) : "") +
            (trainers.front()
                 ? fmt::format("; {} of memory for the copy that is written beside training",
                               bytes_text(snapshot_bytes(*trainers.front())))
                 : std::string()));
  if (evaluation) line("evaluation", evaluation_text(*evaluation, config));
  if (parts.store)
    line("kept",
         fmt::format("hidden states of {} of {} rows, {} on disk",
                     parts.store->capacity(),
                     parts.source->rows(),
                     bytes_text(static_cast<uint64_t>(parts.store->capacity()) * l.batch_bytes)));
  return text;
}

}  // namespace dflash

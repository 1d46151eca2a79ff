#include "config/keys.hpp"

#include <algorithm>
#include <numeric>

namespace dflash::detail {

namespace {

// Finds a member: AT(draft.layers) is a function of a run_config.
#define AT(path)                \
  [](run_config & c) -> auto& { \
    return c.path;              \
  }

const section section_table[] = {
    {"run", "The run as a whole."},
    {"target", "The frozen model that the drafter drafts for."},
    {"draft", "Shape of the drafter. Sizes that are 0 are the target's."},
    {"data", "What is trained on, and how rows are made of it."},
    {"loss", "The loss: its terms, and how much each place in a block weighs."},
    {"optim", "Optimizer, learning rate and length of the run."},
    {"layout",
     "Which devices run what. A lane is `cpu:I`, `cuda:I` or, simulated, `sim:I`; one that another "
     "host lends (`dflash node`) is `NODE/cpu:I`."},
    {"sim",
     "Simulated lanes: the real actors with any layout, on any machine. A lane sleeps through its "
     "service times, hidden states are counted in full and never touched, nothing is trained and "
     "no checkpoint is written. Used if all lanes of the layout are `sim:I`."},
    {"eval", "Held-out figures while training: of each checkpoint that is due, beside it."},
    {"checkpoint", "Saved states to resume from."},
    {"metrics", "What is measured while training."},
    {"profile", "Times of stages."},
    {"net", "How a running training can be reached, and how it reaches the nodes of its layout."},
    {"log", "Messages for people, on stderr."},
};

// clang-format off
const std::vector<key>& table() {
  using enum on_resume;
  static const std::vector<key> rows = {
      {"run.dir", text_key{AT(run.dir)}, "",
       "Run folder: configuration, metrics, checkpoints. Made if it is missing.", free, true},
      {"run.seed", seed_key{AT(run.seed)}, "",
       "Seed of the order of rows, the anchors, noise and random weights."},
      {"run.resume", flag_key{AT(run.resume)}, "",
       "Go on from the newest good checkpoint in `run.dir`.", free},

      {"target.path", text_key{AT(target.path)}, "",
       "Hugging Face folder of the target: config.json and safetensors.", free, true},
      {"target.dtype", text_key{AT(target.dtype), {"auto", "bf16", "fp32"}}, "",
       "Compute type. `auto`: bf16 where a lane is a GPU or the processor "
       "has instructions for it, else fp32."},

      {"draft.layers", integer_key{AT(draft.layers), 1, 1024}, "layers",
       "Layers of the drafter."},
      {"draft.block_size", integer_key{AT(draft.block_size), 2, 1024}, "tokens",
       "Tokens in a block: the anchor and the places to fill; a pass proposes one fewer."},
      {"draft.taps", integers_key{AT(draft.taps), 0}, "layers",
       "Target layers, counted from 0, whose output the drafter reads; rising.", fixed, true},
      {"draft.mask_token_id",
       integer_key{AT(draft.mask_token_id), 0, std::numeric_limits<std::int32_t>::max()},
       "token id",
       "Token that stands for a place to fill: a reserved row of the target's "
       "embedding that no text uses.", fixed, true},
      {"draft.layer_types",
       texts_key{AT(draft.layer_types), {"full_attention", "sliding_attention"}}, "",
       "Attention of each layer; empty: all full."},
      {"draft.sliding_window", integer_key{AT(draft.sliding_window), 0}, "tokens",
       "Window of the sliding layers, counted from the querying token, which is included; 0: no "
       "layer slides."},
      {"draft.causal", optional_flag_key{AT(draft.causal)}, "",
       "Whether places in a block see only earlier ones. Not set: in sliding layers yes, in "
       "full ones no."},
      {"draft.hidden_size", integer_key{AT(draft.hidden_size), 0}, "",
       "Width; 0: the target's."},
      {"draft.intermediate_size", integer_key{AT(draft.intermediate_size), 0}, "",
       "Width of the MLP; 0: the target's."},
      {"draft.heads", integer_key{AT(draft.heads), 0}, "",
       "Query heads; 0: the target's."},
      {"draft.kv_heads", integer_key{AT(draft.kv_heads), 0}, "",
       "Key and value heads; 0: the target's."},
      {"draft.head_dim", integer_key{AT(draft.head_dim), 0}, "",
       "Width of a head; 0: the target's."},
      {"draft.init", text_key{AT(draft.init)}, "",
       "First weights: `random`, `target` (its last layers), or the folder of a drafter."},
      {"draft.norm_scale", number_key{AT(draft.norm_scale), 0.0, 1e6, true}, "",
       "First weights of the final norm, as a share of the target's (init random or target)."},
      {"draft.vocab_size", integer_key{AT(draft.vocab_size), 0, 1 << 24}, "tokens",
       "Draft vocabulary: so many most frequent supervised tokens of `data.train`. 0: that of the "
       "drafter in `init`, else the target's whole vocabulary."},
      {"draft.vocab_map", text_key{AT(draft.vocab_map)}, "",
       "Draft vocabulary from files: a checkpoint or safetensors file with `d2t` and `t2d`, or a "
       "pair `d2t.npy`, `t2d.npy` (either, or their folder), as speculators writes them. Empty: "
       "`vocab_size` says."},

      {"data.train", texts_key{AT(data.train)}, "",
       "Token shards to train on.", fixed, true},
      {"data.held_out", texts_key{AT(data.held_out)}, "",
       "Token shards that are never trained on: loss and `accept_len` of evaluations.", free},
      {"data.row_tokens", integer_key{AT(data.row_tokens), 2, 1 << 24}, "tokens",
       "Length of a row (a batch is one row); documents are packed into rows."},
      {"data.anchors", integer_key{AT(data.anchors), 1, 1 << 20}, "blocks",
       "Blocks drawn from each row."},
      {"data.epochs", integer_key{AT(data.epochs), 1, 1000000}, "",
       "Passes over the data."},
      {"data.keep_hidden_states", bytes_key{AT(data.keep_hidden_states)}, "bytes",
       "Room on disk for hidden states, so that later epochs need not run the target; 0: "
       "none are kept.", free},
      {"data.hidden_states", text_key{AT(data.hidden_states)}, "",
       "Folder that `dflash capture` wrote (or speculators), to train from instead of running the "
       "target; empty: the target makes them."},
      {"data.noise", number_key{AT(data.noise), 0.0, 1e3}, "",
       "Uniform noise from -noise to noise on the tapped hidden states while training."},

      {"loss.terms",
       weights_key{AT(loss.terms), {loss_term_names.begin(), loss_term_names.end()}}, "",
       "Weight of each term: `ce` (the data's tokens); against the target's distribution `kl` "
       "(forward), `rkl` (reverse), `jsd` (Jensen-Shannon), `tv` (total variation), `nla` "
       "(negative log acceptance), `lk_hybrid` (`kl` blending into `tv`); see losses.md."},
      {"loss.weighting", text_key{AT(loss.weighting), {"decay", "uniform", "dpace"}}, "",
       "Weight of a place in its block: falling by `gamma`, all alike, or by the drafter's own "
       "confidence (D-PACE)."},
      {"loss.gamma", number_key{AT(loss.gamma), 0.0, 1e6, true}, "places",
       "Place k of a block weighs exp(-(k - 1) / gamma) (`decay`)."},
      {"loss.dpace_alpha", number_key{AT(loss.dpace_alpha), 0.0, 1.0, true}, "",
       "Smoothing of the confidence in `dpace`: 1 counts what follows, less trusts the drafter."},
      {"loss.temperature", number_key{AT(loss.temperature), 0.01, 100.0}, "",
       "Temperature of both distributions in `kl`."},
      {"loss.cap_lambda", number_key{AT(loss.cap_lambda), 0.0, 1e3}, "",
       "Weight of the entropy where the drafter is right already (confidence-aware training); "
       "0: off."},
      {"loss.prefix", number_key{AT(loss.prefix), 0.0, 1.0}, "",
       "Blocks show l true tokens, the anchor counted, with probability in proportion to "
       "prefix^l; 0: the anchor alone."},

      {"optim.name", text_key{AT(optim.name), {"adamw", "muon"}}, "",
       "`adamw`, or `muon` (Muon on matrices, AdamW on the rest)."},
      {"optim.lr", number_key{AT(optim.lr), 0.0, 1e3, true}, "",
       "Peak learning rate of AdamW."},
      {"optim.muon_lr", number_key{AT(optim.muon_lr), 0.0, 1e3, true}, "",
       "Peak learning rate of Muon."},
      {"optim.muon_adjust_lr",
       text_key{AT(optim.muon_adjust_lr), {"match_rms_adamw", "original"}}, "",
       "How Muon's rate follows a matrix's shape: 0.2 sqrt(longer side), or "
       "sqrt(max(1, rows / columns))."},
      {"optim.betas", pair_key{AT(optim.betas)}, "",
       "Decay of AdamW's two moments."},
      {"optim.weight_decay", number_key{AT(optim.weight_decay), 0.0, 1e3}, "",
       "Decoupled decay of matrices."},
      {"optim.clip", number_key{AT(optim.clip), 0.0}, "",
       "Largest norm of the whole gradient; 0: no limit."},
      {"optim.skip_spikes", number_key{AT(optim.skip_spikes), 0.0, 1e6}, "",
       "Skip a step whose loss lies so many standard deviations above the mean of the steps "
       "before; 0: none is skipped for it (`loss_z` in `metrics.jsonl` shows it all the same)."},
      {"optim.accumulation", integer_key{AT(optim.accumulation), 1, 1 << 20}, "batches",
       "Batches of each drafter in an optimizer step."},
      {"optim.ema", number_key{AT(optim.ema), 0.0, 0.999999}, "",
       "Decay per step of a moving average of the weights, which is then what is exported; 0: "
       "off."},
      {"optim.schedule",
       text_key{AT(optim.schedule), {"cosine", "linear", "wsd", "constant"}}, "",
       "Course of the learning rate after the warm-up; `wsd`: stable, then falling."},
      {"optim.warmup", span_key{AT(optim.warmup)}, "share or steps",
       "Rising part at the start."},
      {"optim.decay", span_key{AT(optim.decay)}, "share or steps",
       "Falling part at the end (`wsd`)."},
      {"optim.min_lr_share", number_key{AT(optim.min_lr_share), 0.0, 1.0, true}, "",
       "Last learning rate as a share of the peak."},
      {"optim.steps", integer_key{AT(optim.steps), 0}, "steps",
       "Length of the run; 0: what the epochs give. More steps than that repeat the data."},

      {"layout.targets", texts_key{AT(layout.targets)}, "",
       "Lanes that run the target, one copy each.", free},
      {"layout.drafters", texts_key{AT(layout.drafters)}, "",
       "Lanes that train a replica of the drafter. A resumed run must have as many.", fixed_count},
      {"layout.nodes", addresses_key{AT(layout.nodes)}, "HOST:PORT",
       "Where the nodes of the lanes above listen, by name: `{ nodeB = \"10.0.0.2:5555\" }`. Nodes "
       "that are not here are waited for: they join by themselves (`dflash node --join`).", free},
      {"layout.target_threads", integer_key{AT(layout.target_threads), 1, 1024}, "threads",
       "Threads of a target lane on a CPU. They change rounding."},
      {"layout.drafter_threads", integer_key{AT(layout.drafter_threads), 1, 1024}, "threads",
       "Threads of a drafter lane on a CPU. They change rounding."},
      {"layout.max_in_flight", bytes_key{AT(layout.max_in_flight)}, "bytes",
       "Most memory for hidden states between targets and drafters; 0: derived from the "
       "layout.", free},
      {"layout.host_memory", bytes_key{AT(layout.host_memory)}, "bytes",
       "Memory of this host that the run may take, by forecast (`dflash plan`); 0: all there is.",
       free},
      {"layout.device_memory", bytes_key{AT(layout.device_memory)}, "bytes",
       "Memory of each GPU of the layout, e.g. \"80 GB\", which the forecast must fit; 0: not "
       "compared.", free},

      {"sim.law", text_key{AT(sim.law), {"constant", "exponential", "uniform"}}, "",
       "How service times are drawn; the keys below are means.", free},
      {"sim.spread", number_key{AT(sim.spread), 0.0, 1.0}, "",
       "`uniform`: times lie between mean x (1 - spread) and mean x (1 + spread).", free},
      {"sim.target_seconds", number_key{AT(sim.target_seconds), 0.0, 1e6}, "seconds",
       "Forward pass of a target over a batch.", free},
      {"sim.postprocess_seconds", number_key{AT(sim.postprocess_seconds), 0.0, 1e6}, "seconds",
       "Postprocess of a batch.", free},
      {"sim.drafter_seconds", number_key{AT(sim.drafter_seconds), 0.0, 1e6}, "seconds",
       "Forward and backward pass of a drafter over a batch.", free},
      {"sim.reduction_seconds", number_key{AT(sim.reduction_seconds), 0.0, 1e6}, "seconds",
       "Reduction of a step, where there are several drafters.", free},
      {"sim.update_seconds", number_key{AT(sim.update_seconds), 0.0, 1e6}, "seconds",
       "Update of a step.", free},
      {"sim.seed", seed_key{AT(sim.seed)}, "",
       "Seed of the service times.", free},
      {"sim.hidden_size", integer_key{AT(sim.hidden_size), 0, 1 << 20}, "",
       "Width of the target's hidden states; 0: of config.json in `target.path`.", free},
      {"sim.layers", integer_key{AT(sim.layers), 0, 1 << 16}, "layers",
       "Layers of the target; 0: of config.json in `target.path`.", free},
      {"sim.vocab_size", integer_key{AT(sim.vocab_size), 0, 1 << 24}, "tokens",
       "Vocabulary of the target; 0: of config.json in `target.path`.", free},
      {"sim.rows", integer_key{AT(sim.rows), 1, 1 << 20}, "rows",
       "Rows of an epoch, made up, where `data.train` names no shards.", free},

      {"eval.every", integer_key{AT(eval.every), 0}, "steps",
       "Rhythm of evaluations; each of them saves a checkpoint too, and the last step has one. 0: "
       "none.", free},
      {"eval.prompts", texts_key{AT(eval.prompts)}, "",
       "Prompt shards for `tau`, as `dflash eval` measures it; all of their prompts.", free},
      {"eval.max_new_tokens", integer_key{AT(eval.max_new_tokens), 1, 1 << 20}, "tokens",
       "Answer to each prompt.", free},
      {"eval.patience", integer_key{AT(eval.patience), 0, 1 << 20}, "evaluations",
       "So many in a row without a better `tau` (without prompts: loss) end the run, with the "
       "evaluation after them; 0: none do.", free},
      {"eval.threads", integer_key{AT(eval.threads), 1, 1024}, "threads",
       "Threads of evaluations, beside those of the lanes. They change rounding.", free},

      {"checkpoint.every", integer_key{AT(checkpoint.every), 0}, "steps",
       "Rhythm; 0: only at the end and when stopped.", free},
      {"checkpoint.keep", integer_key{AT(checkpoint.keep), 1, 1 << 20}, "",
       "Newest good checkpoints that stay. The best by held-out `tau` or loss stays too.", free},
      {"checkpoint.keep_every", integer_key{AT(checkpoint.keep_every), 0}, "steps",
       "Checkpoints at multiples of it are saved and stay for good; 0: none.", free},
      {"checkpoint.export_dtype", text_key{AT(checkpoint.export_dtype), {"bf16", "fp32"}}, "",
       "Type of the drafter's weights in `model.safetensors`; masters beside it are fp32.", free},

      {"metrics.every", integer_key{AT(metrics.every), 1}, "batches",
       "Rhythm of accuracies, counted by batch number; loss and norms are of every batch. Measuring "
       "each batch (1) costs next to nothing.", free},
      {"metrics.listen", text_key{AT(metrics.listen)}, "HOST:PORT",
       "Where the page and Prometheus' `/metrics` are served; port 0: a free one, written to "
       "`metrics_address` in the run folder; empty: nowhere.", free},
      {"metrics.insecure", flag_key{AT(metrics.insecure)}, "",
       "Let `metrics.listen` be an address that other machines reach. There is no password: whoever "
       "reaches it can read how the run goes.", free},
      {"metrics.tensorboard", flag_key{AT(metrics.tensorboard)}, "",
       "Write TensorBoard event files to `tensorboard/` in the run folder.", free},
      {"metrics.peak_flops", number_key{AT(metrics.peak_flops), 0.0}, "FLOP/s",
       "What all lanes together could compute at best; gives the share of it that is used (MFU). 0: "
       "as known of GPUs by their name (dense bf16), of processors not.", free},

      {"profile.interval", integer_key{AT(profile.interval), 0}, "steps",
       "Rhythm of the table of stage times; 0: off.", free},
      {"profile.trace", text_key{AT(profile.trace)}, "",
       "Write a trace of these steps, both included, to `trace.json` in the run folder, for Perfetto "
       "or chrome://tracing: `steps 10..20`. Empty: none.", free},

      {"net.listen", text_key{AT(net.listen)}, "HOST:PORT",
       "Where `dflash inspect` finds the run, and nodes that join; port 0: a free one, written to "
       "`address` in the run folder.", free},
      {"net.tls", text_key{AT(net.tls)}, "",
       "Folder with `ca.pem`, `node.pem` and `node.key` as `dflash cert` makes them: all connections "
       "are encrypted, and only peers with a certificate of that authority get in. Needed, unless "
       "`net.insecure`, for every address that other machines reach.", free},
      {"net.insecure", flag_key{AT(net.insecure)}, "",
       "Speak plaintext with other machines. There is no password: whoever reaches the ports can "
       "read and change what is trained.", free},
      {"net.heartbeat", number_key{AT(net.heartbeat), 0.05, 10.0}, "seconds",
       "Rhythm of the signs of life between hosts.", free},
      {"net.timeout", number_key{AT(net.timeout), 0.5, 300.0}, "seconds",
       "A peer that is silent for so long is lost; at least 4 heartbeats.", free},
      {"net.wait", number_key{AT(net.wait), 0.0, 86400.0}, "seconds",
       "How long a run waits at its start for nodes that are not there yet.", free},
      {"net.patience", number_key{AT(net.patience), 0.0, 1e6}, "seconds",
       "How long a lane whose node is lost is tried again before it is retired. Batches of a lost "
       "target go to the others meanwhile; a lost drafter is waited for.", free},

      {"log.level", text_key{AT(log.level), {"trace", "debug", "info", "warn", "error", "off"}}, "",
       "Least level that is printed.", free},
  };
  return rows;
}
// clang-format on

#undef AT

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const section> sections() {
  return section_table;
}

std::span<const key> keys() {
  return table();
}

const key* find_key(std::string_view name) {
  for (const key& k : table())
    if (k.name == name) return &k;
  return nullptr;
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > 200) return std::nullopt;
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const bool extended = candidate.size() > 2 && word.starts_with(candidate);  // optimizer: optim
    const std::size_t distance = extended ? 1 : edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace dflash::detail

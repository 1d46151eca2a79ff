// The configuration of a run: one plain struct per section of the TOML file, read once at the rim,
// validated once, then passed on by const reference. Member names are the TOML keys. What a key
// means, its unit and its range stand in one table (config/keys.cpp), from which parsing, printing
// and docs/configuration.md are made.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

/// A length of time within a run: a share of its steps (0..1), or a number of steps if `steps` >=
/// 0.
struct step_span {
  double share = 0.0;
  std::int64_t steps = -1;

  /// In steps of a run of `total` steps: a share is rounded to the nearest step. May exceed
  /// `total` if given in steps; check_schedule() refuses that.
  std::uint64_t of(std::uint64_t total) const;
  bool operator==(const step_span&) const = default;
};

struct run_section {
  std::string dir;         // run folder, made if missing
  std::uint64_t seed = 1;  // of shuffle, anchors, noise and random weights
  bool resume = false;     // go on from the newest good checkpoint in dir
  bool operator==(const run_section&) const = default;
};

struct target_section {
  std::string path;            // Hugging Face folder of the frozen target
  std::string dtype = "auto";  // "auto" | "bf16" | "fp32": compute dtype
  bool operator==(const target_section&) const = default;
};

struct draft_section {
  std::int64_t layers = 5;
  std::int64_t block_size = 16;     // anchor slot + masks: proposes block_size - 1 tokens
  std::vector<int> taps;            // 0-based target layers whose output is read; strictly rising
  std::int64_t mask_token_id = -1;  // -1: not given, which is an error: no guess
  std::vector<std::string> layer_types;  // [layers] "full_attention" | "sliding_attention"; empty:
                                         // all full
  std::int64_t sliding_window = 0;       // tokens, the query included; 0: none
  std::optional<bool> causal;    // within a block; unset: sliding layers are, full ones are not
  std::int64_t hidden_size = 0;  // 0 here and below: as the target's
  std::int64_t intermediate_size = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::string init = "random";  // "random" | "target" | a drafter folder
  double norm_scale = 0.2;      // first final norm as a share of the target's
  std::int64_t vocab_size = 0;  // most frequent supervised tokens that it drafts; 0: all
  std::string vocab_map;        // d2t and t2d that others made; empty: by vocab_size
  bool operator==(const draft_section&) const = default;
};

struct data_section {
  std::vector<std::string> train;     // token shards
  std::vector<std::string> held_out;  // token shards that evaluations measure the loss on
  std::int64_t row_tokens = 2048;     // T
  std::int64_t anchors = 512;         // A, per row
  std::int64_t epochs = 1;
  std::uint64_t keep_hidden_states = 0;  // bytes on disk for hidden states of later epochs; 0: off
  std::string hidden_states;             // folder of `dflash capture`; empty: the target makes them
  double noise = 0.0;                    // taps + U(-noise, noise), training only
  bool operator==(const data_section&) const = default;
};

/// Names of loss.terms, in the order in which they are computed and reported (docs/losses.md).
inline constexpr std::array<std::string_view, 7> loss_term_names = {
    "ce", "kl", "rkl", "jsd", "tv", "nla", "lk_hybrid"};

struct loss_section {
  std::map<std::string, double> terms = {{"ce", 1.0}};  // weight by name, of loss_term_names
  std::string weighting = "decay";                      // "decay" | "uniform" | "dpace"
  double gamma = 7.0;        // decay: slot k weighs exp(-(k - 1) / gamma)
  double dpace_alpha = 0.5;  // dpace: smoothing of the drafter's confidence
  double temperature = 1.0;  // of kl
  double cap_lambda = 0.0;   // weight of the entropy of slots that are right; 0: off
  double prefix = 0.0;       // l true tokens at the head of a block with probability ~ prefix^l
  bool operator==(const loss_section&) const = default;
};

struct optim_section {
  std::string name = "adamw";  // "adamw" | "muon" (matrices by Muon, the rest by AdamW)
  double lr = 6e-4;
  double muon_lr = 2e-3;
  std::string muon_adjust_lr = "match_rms_adamw";  // | "original": torch.optim.Muon's two scales
  std::array<double, 2> betas = {0.9, 0.95};
  double weight_decay = 0.0;
  double clip = 1.0;                // of the global gradient norm; 0: off
  double skip_spikes = 0.0;         // standard deviations of the loss; 0: off
  std::int64_t accumulation = 1;    // batches per drafter and step
  double ema = 0.0;                 // decay of the moving average that is exported; 0: off
  std::string schedule = "cosine";  // "cosine" | "linear" | "wsd" | "constant"
  step_span warmup = {.share = 0.04, .steps = -1};
  step_span decay = {.share = 0.2, .steps = -1};  // wsd: the falling part at the end
  double min_lr_share = 0.1;                      // last rate as a share of the peak
  std::int64_t steps = 0;                         // 0: as many as the epochs give
  bool operator==(const optim_section&) const = default;
};

struct layout_section {
  std::vector<std::string> targets = {"cpu:0"};   // [N] lanes "cpu:I" | "cuda:I" | "sim:I", of
                                                  // another host "NODE/cpu:I"
  std::vector<std::string> drafters = {"cpu:0"};  // [M]
  std::map<std::string, std::string> nodes;       // name -> HOST:PORT of its `dflash node`
  std::int64_t target_threads = 1;                // per lane, CPU
  std::int64_t drafter_threads = 1;               // per lane, CPU; changes bits
  std::uint64_t max_in_flight = 0;                // bytes of hidden states; 0: derived
  std::uint64_t host_memory = 0;                  // bytes that a run may take; 0: the machine's
  std::uint64_t device_memory = 0;                // bytes of each GPU; 0: not known
  bool operator==(const layout_section&) const = default;
};

struct eval_section {
  std::int64_t every = 0;            // steps; 0: no evaluation while training
  std::vector<std::string> prompts;  // prompt shards, for tau
  std::int64_t max_new_tokens = 128;
  std::int64_t patience = 0;  // evaluations in a row without a better one; 0: never stops
  std::int64_t threads = 1;   // beside training; changes bits of the figures
  bool operator==(const eval_section&) const = default;
};

/// Times of simulated lanes, which take time and count bytes as real ones, and compute nothing.
struct sim_section {
  std::string law = "constant";  // "constant" | "exponential" | "uniform": how times are drawn
  double spread = 0.5;           // uniform: mean * (1 - spread) to mean * (1 + spread)
  double target_seconds = 1.0;   // mean, per batch
  double postprocess_seconds = 0.0;
  double drafter_seconds = 1.0;    // forward and backward of a batch
  double reduction_seconds = 0.0;  // of a step, with several drafters
  double update_seconds = 0.0;     // of a step
  std::uint64_t seed = 1;          // of the times
  std::int64_t hidden_size = 0;    // of the target; these three 0: from target.path/config.json
  std::int64_t layers = 0;
  std::int64_t vocab_size = 0;
  std::int64_t rows = 64;  // in an epoch, where data.train names no shards
  bool operator==(const sim_section&) const = default;
};

struct checkpoint_section {
  std::int64_t every = 500;           // steps; 0: only at the end
  std::int64_t keep = 2;              // newest good ones
  std::int64_t keep_every = 0;        // steps: multiples of it stay too; 0: none
  std::string export_dtype = "bf16";  // "bf16" | "fp32" of model.safetensors beside it
  bool operator==(const checkpoint_section&) const = default;
};

struct metrics_section {
  std::int64_t every = 8;              // batches, counted by k
  std::string listen = "127.0.0.1:0";  // of the page and /metrics; port 0: a free one; empty: none
  bool insecure = false;               // may listen on an address that other machines reach
  bool tensorboard = true;             // event files in the run folder
  double peak_flops = 0;               // a second, of all lanes together; 0: not known
  bool operator==(const metrics_section&) const = default;
};

struct profile_section {
  std::int64_t interval = 0;  // steps; 0: off
  std::string trace;          // "steps 10..20": those go to trace.json; empty: off
  bool operator==(const profile_section&) const = default;
};

struct net_section {
  std::string listen = "127.0.0.1:0";  // of the inspector and nodes that join; port 0: a free one
  std::string tls;                     // folder of `dflash cert`; empty: plaintext
  bool insecure = false;               // plaintext with other machines
  double heartbeat = 0.5;              // seconds
  double timeout = 4.0;                // seconds of silence after which a peer is lost
  double wait = 60.0;                  // seconds for nodes at the start
  double patience = 600.0;             // seconds for a lost node to come back
  bool operator==(const net_section&) const = default;
};

struct log_section {
  std::string level = "info";  // trace, debug, info, warn, error, off
  bool operator==(const log_section&) const = default;
};

struct run_config {
  run_section run;
  target_section target;
  draft_section draft;
  data_section data;
  loss_section loss;
  optim_section optim;
  layout_section layout;
  sim_section sim;
  eval_section eval;
  checkpoint_section checkpoint;
  metrics_section metrics;
  profile_section profile;
  net_section net;
  log_section log;
  bool operator==(const run_config&) const = default;
};

/// Reads a TOML file (an empty path: defaults only), lays overrides ("section.key=value", a leading
/// "--" is allowed) over it in order, and checks each value's type and range, but not what needs
/// several keys: that is validate(). Throws error with file:line:column.
run_config parse_run_config(const std::filesystem::path& file,
                            const std::vector<std::string>& overrides = {});

/// The same of a text, which errors call by this name.
run_config parse_run_text(const std::string& text, const std::string& name);

/// Checks everything that needs more than one key, and that the required keys are there. Throws
/// error naming the key.
void validate(const run_config& config);

/// parse_run_config() and validate().
run_config load_run_config(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides = {});

/// What can only be checked when the number of optimizer steps is known: warm-up and decay must fit
/// into it, except that a decay given as a share ends up as what the warm-up leaves. Throws error
/// with both numbers.
void check_schedule(const optim_section& optim, std::uint64_t total_steps);

/// The fully resolved configuration as TOML with a comment per key; parses back to an equal one.
std::string to_toml(const run_config& config);

/// docs/configuration.md.
std::string reference_markdown();

/// Keys ("section.key") whose values differ. With `fixed_on_resume_only`, those that must not
/// change when a run is resumed, because they decide its bits.
std::vector<std::string> differing_keys(const run_config& a,
                                        const run_config& b,
                                        bool fixed_on_resume_only = false);

/// One value as it stands in TOML, e.g. value_text(c, "draft.taps") == "[1, 9]". The key must
/// exist.
std::string value_text(const run_config& config, const std::string& key);

/// "steps 10..20" or "10..20": steps counted from 1, both ends included. Throws error for anything
/// else, naming profile.trace.
struct step_window {
  std::uint64_t first = 0, last = 0;
};
step_window parse_step_window(const std::string& text);

/// A lane of the layout: "cpu:0", "cuda:1" or "sim:2"; of another host "NODE/cpu:0".
struct lane_name {
  bool cuda = false;
  bool sim = false;
  int index = 0;
  std::string node = {};  // empty: of this process
  /// Without the node: "cpu:0".
  std::string local() const;
};

/// Whether it can be the name of a node: letters, digits, ".", "_", "-", at most 63 of them.
bool is_node_name(const std::string& text);

/// Throws error for anything else.
lane_name parse_lane(const std::string& text);

/// Whether the lanes of the layout are simulated: all or none, which validate() sees to.
bool is_simulated(const run_config& config);

/// "8 GB", "512 MiB", "4096" in bytes; nullopt for anything else. k, M, G, T are powers of 1000,
/// Ki, Mi, Gi, Ti of 1024.
std::optional<std::uint64_t> parse_bytes(const std::string& text);

}  // namespace dflash

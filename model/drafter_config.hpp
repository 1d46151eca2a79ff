// Shape of a DFlash drafter (dflash.md 2): what its config.json says, in our names. Taps are
// z-lab's numbering (output of 0-based target layer); other numberings are converted at the file
// boundary only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "config/run_config.hpp"
#include "model/target_config.hpp"

namespace dflash {

class model_folder;

struct drafter_config {
  int64_t layers = 0;             // L
  int64_t hidden = 0;             // H
  int64_t intermediate = 0;       // I
  int64_t heads = 0;              // nh
  int64_t kv_heads = 0;           // nkv
  int64_t head_dim = 0;           // hd, even
  int64_t target_hidden = 0;      // Ht
  int64_t vocab = 0;              // V
  int64_t block_size = 0;         // B: one anchor slot and B - 1 mask slots
  int64_t mask_token_id = -1;     // a row of the target's embedding
  int64_t sliding_window = 0;     // W, counts the query itself; 0 where no layer slides
  int64_t num_target_layers = 0;  // layers of the target that the taps count; 0: not known
  int64_t max_positions = 0;
  double rope_theta = 0;
  double rms_eps = 0;
  std::vector<int> taps;       // [nT], ascending
  std::vector<bool> sliding;   // [layers]
  std::optional<bool> causal;  // in the block; unset: causal exactly in sliding layers

  std::vector<int32_t> draft_ids =
      {};  // [Vd] target ids of the draft vocabulary, rising; empty: all V

  int64_t draft_vocab() const {  // Vd
    return draft_ids.empty() ? vocab : static_cast<int64_t>(draft_ids.size());
  }
  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  // Whether slot k of layer i sees only slots <= k of its block (order of resolution:
  // dflash.md 2.3).
  bool layer_causal(int64_t i) const { return causal ? *causal : sliding[static_cast<size_t>(i)]; }
};

// Default taps (dflash.md 2.5): [n div 2] for one draft layer, else round(1 + i (n - 4) / (L - 1))
// with banker's rounding.
std::vector<int> default_taps(int64_t target_layers, int64_t draft_layers);

// The drafter that `draft` asks for on this target; throws dflash::error naming the key that does
// not fit.
drafter_config make_drafter_config(const draft_section& draft, const target_config& target);

// FOLDER/config.json in z-lab's or speculators' form (dflash.md 3.1-3.4), and the draft vocabulary
// beside it where there is one; throws dflash::error naming file and key.
drafter_config read_drafter_config(const std::filesystem::path& folder);
// The same of an open folder: the tensors of the draft vocabulary count as used.
drafter_config take_drafter_config(model_folder& files);
// config.json alone. draft_vocab receives Vd; draft_ids stays empty.
drafter_config parse_drafter_config(const json_file& config, int64_t& draft_vocab);

// Throws dflash::error (where = `where`) unless sizes, taps, mask id and layer kinds fit together.
void check_drafter_config(const drafter_config& config, const std::string& where);

// Throws dflash::error unless a drafter of this shape can serve this target.
void check_drafter_fits(const drafter_config& config,
                        const target_config& target,
                        const std::string& where);

}  // namespace dflash

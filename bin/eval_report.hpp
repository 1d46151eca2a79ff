// What `dflash eval` found out, as JSON and as tables for people.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/eval.hpp"
#include "model/output_check.hpp"
#include "model/sampling.hpp"

namespace dflash {

/// Real decoding of some prompts of one set, plain and speculative in turns.
struct decode_report {
  std::vector<int64_t> prompts;  // indices in the set
  decode_stats plain, speculative;
  output_check check;

  /// Tokens of verify passes per second of verify passes: prefill and its token are outside, as in
  /// tau.
  double plain_rate() const;
  double speculative_rate() const;
  double speedup() const;
};

/// Outputs of plain and speculative decoding in batches, compared.
struct check_report {
  std::vector<int64_t> prompts;  // indices in the set
  output_check check;
};

struct set_report {
  std::string name;
  std::string shard;
  walk_report walk = {}, lookup = {};
  decode_report decode = {};  // empty without --decode
  check_report check = {};    // empty without --check
};

struct eval_report {
  std::string target, target_hash, drafter;
  bool drafter_is_lookup = false;
  int64_t max_drafts = 0;
  int64_t max_new_tokens = 0;
  int64_t threads = 0;
  std::string device = "cpu";  // or "cuda:I"
  sampling_options sampling = {};
  std::string dtype, decode_dtype, check_dtype;  // empty if that part did not run
  std::vector<set_report> sets;
  double load_seconds = 0, answer_seconds = 0, walk_seconds = 0;
  double decode_seconds = 0, check_seconds = 0;
};

/// Keys are documented in docs/formats.md ("eval.json").
nlohmann::ordered_json to_json(const eval_report& report);

/// Tables of a terminal's width.
std::string to_text(const eval_report& report);

}  // namespace dflash

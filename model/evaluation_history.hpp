// Evaluations of one run in the order of its steps: which is the best, whether patience is used up,
// and the file that keeps them. Plain data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dflash {

struct evaluation {
  uint64_t step = 0;  // of the checkpoint
  // On held-out text; nothing without.
  std::optional<double> loss, accept_len;
  std::optional<double> tau;  // on prompts; nothing without
  int64_t rows = 0;           // of held-out text
  int64_t prompts = 0;
  int64_t passes = 0, committed = 0;  // of verification: tau is their ratio
  double seconds = 0;                 // how long it took; the rest is the same bits in every run

  // By tau where there are prompts, else by loss. Equal ones: the earlier is the better one.
  bool is_better_than(const evaluation& other) const;
};

class evaluation_history {
public:
  // patience: so many evaluations in a row without a better one use it up; 0: none do.
  explicit evaluation_history(uint64_t patience = 0) : patience_(patience) {}

  // Steps rise. Whether it is the best so far.
  bool add(const evaluation& result);
  const std::vector<evaluation>& all() const { return all_; }
  const evaluation* best() const { return all_.empty() ? nullptr : &all_[best_]; }
  uint64_t without_better() const { return without_better_; }
  // Step of the evaluation with which patience was used up.
  std::optional<uint64_t> out_of_patience() const { return out_of_patience_; }

private:
  uint64_t patience_;
  std::vector<evaluation> all_;
  size_t best_ = 0;
  uint64_t without_better_ = 0;
  std::optional<uint64_t> out_of_patience_;
};

// RUN/evaluations.json. `settings`: all that decides the figures; those of others do not count.
void write_evaluations(const std::filesystem::path& file,
                       const std::string& settings,
                       const std::vector<evaluation>& all);

struct stored_evaluations {
  std::vector<evaluation> all;
  std::string note;  // why earlier ones do not count; empty: they do, or there are none
};
// Those of steps up to `last_step`. A missing file holds none; a damaged one holds none, with a
// note.
stored_evaluations read_evaluations(const std::filesystem::path& file,
                                    const std::string& settings,
                                    uint64_t last_step);

}  // namespace dflash

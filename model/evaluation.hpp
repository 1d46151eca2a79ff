// Held-out figures of a drafter while it trains, one piece of work at a time: loss and accept_len
// on rows of text, tau on prompts. What does not depend on the drafter (the target's answers and
// hidden states) is kept within a budget and otherwise made again, with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "data/batches.hpp"
#include "data/shards.hpp"
#include "model/eval.hpp"
#include "model/evaluation_history.hpp"
#include "model/target.hpp"

namespace dflash {

/// As `dflash eval`: prompts of a shard whose answers are made in one batch.
inline constexpr int64_t evaluated_at_once = 64;

struct evaluation_parts {
  std::shared_ptr<const target> model;       // shared with the target lanes
  std::shared_ptr<const batch_source> rows;  // held-out text; null: none
  std::vector<token_documents> prompts;      // [shard]; all of them count as one set
  int64_t max_new_tokens = 128;
  loss_section loss;
  bool last_hidden = false;         // the loss reads the teacher
  uint64_t budget_bytes = 1 << 30;  // for what is kept from one evaluation to the next
  // Asked between passes of the target: true gives the evaluation up by an exception.
  std::function<bool()> give_up;
};

class evaluator_work {
public:
  explicit evaluator_work(evaluation_parts parts);
  ~evaluator_work();

  // Loads the drafter of a checkpoint. Throws error where it is damaged or not of this target.
  void begin(uint64_t steps, const std::filesystem::path& checkpoint);
  // Some of the work, seconds at most once answers are kept; the figures when all is done. Uses the
  // calling thread's ATen threads, whose number is part of the bits.
  std::optional<evaluation> go_on();
  // Of what is kept.
  uint64_t kept_bytes() const;

private:
  struct at_work;
  void score_row(int64_t row);
  void walk_group(size_t group);

  struct prompt_group {
    size_t shard = 0;
    int64_t first = 0, last = 0;
    std::vector<walk_item> items;  // empty: not kept
  };
  struct held_out_row {
    std::vector<at::Tensor> hidden;  // taps, then the last hidden state if it is read
  };
  const std::vector<walk_item>& answers_of(prompt_group& group, std::vector<walk_item>& made);
  bool keep(uint64_t bytes);

  evaluation_parts parts_;
  std::vector<prompt_group> groups_;
  std::vector<held_out_row> rows_;  // [row]
  epoch_order order_;               // of parts_.rows
  uint64_t kept_ = 0;
  std::unique_ptr<at_work> at_work_;
};

}  // namespace dflash

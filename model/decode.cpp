#include "model/decode.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "config/error.hpp"
#include "device/upload.hpp"
#include "model/generate.hpp"
#include "model/kv_cache.hpp"

namespace dflash {

namespace {

// Rows of one prefill call: bounds the activations, whatever the number of prompts.
constexpr int64_t prefill_rows = 4096;

// One sequence in a slot.
struct sequence {
  int64_t prompt = -1;  // index in prompts; -1 = the slot is free
  int64_t limit = 0;    // new tokens it may get
  int32_t anchor = 0;   // last token, not yet run through the target
  bool done = false;
};

using clock = std::chrono::steady_clock;

double seconds_since(clock::time_point start) {
  return std::chrono::duration<double>(clock::now() - start).count();
}

// Rows [indices] of a tensor; a view where they are neighbours.
at::Tensor select_rows(const at::Tensor& from, const std::vector<int64_t>& indices) {
  const auto count = static_cast<int64_t>(indices.size());
  if (count == from.size(0)) return from;  // ascending and distinct: all rows
  if (indices.back() - indices.front() + 1 == count) return from.narrow(0, indices.front(), count);
  return from.index_select(0, upload(indices, from.device()));
}

class decode_loop {
public:
  decode_loop(const target& model,
              std::span<const std::span<const int32_t>> prompts,
              proposer* drafts,
              const decode_options& options)
      : model_{model}, prompts_{prompts}, drafts_{drafts}, options_{options} {
    if (options_.eos.empty()) options_.eos = model.config().eos;
    if (drafts_ != nullptr) taps_.assign(drafts_->taps().begin(), drafts_->taps().end());
    DFLASH_CHECK(options_.keep_taps.empty() || taps_.empty() || options_.keep_taps == taps_,
                 "a proposer's taps and the kept ones differ");
    if (taps_.empty()) taps_ = options_.keep_taps;
    results_.resize(prompts.size());
  }

  std::vector<decoded> run() {
    int64_t capacity = 0;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const auto length = static_cast<int64_t>(prompts_[i].size());
      const int64_t limit = checked_limit(i, length);
      limits_.push_back(limit);
      if (limit == 0) {
        results_[i].stop =
            options_.max_new_tokens == 0 ? stop_reason::token_limit : stop_reason::no_room;
        continue;
      }
      waiting_.push_back(i);
      capacity = std::max(capacity, length + limit);
    }
    if (waiting_.empty()) return std::move(results_);
    std::reverse(waiting_.begin(), waiting_.end());  // taken from the back
    const size_t slots = std::min(static_cast<size_t>(options_.max_slots), waiting_.size());
    cache_.emplace(model_.config(),
                   model_.dtype(),
                   narrow<int64_t>(slots),
                   capacity,
                   drafts_ != nullptr ? drafts_->max_drafts() : 0,
                   model_.device());
    sequences_.resize(slots);
    blocks_.resize(slots);
    if (drafts_ != nullptr) drafts_->start(narrow<int64_t>(slots), capacity);
    while (true) {
      if (options_.between_passes) options_.between_passes();
      prefill();
      if (at_work() > 0)
        verify();
      else if (waiting_.empty())
        return std::move(results_);
    }
  }

private:
  int64_t checked_limit(size_t prompt, int64_t length) const {
    const int64_t positions = model_.config().max_positions;
    const std::string where = "prompt " + std::to_string(prompt);
    if (length == 0) throw error("a prompt has no token", where);
    if (length > positions)
      throw error("a prompt of " + std::to_string(length) + " tokens is longer than the target's " +
                      std::to_string(positions) + " positions",
                  where,
                  "shorten it or leave it out of the shard");
    return room_for(length, positions, options_.max_new_tokens);
  }

  int64_t at_work() const {
    return std::count_if(
        sequences_.begin(), sequences_.end(), [](const sequence& s) { return s.prompt >= 0; });
  }

  // Puts waiting prompts into free slots, runs them through the target, takes their first token.
  void prefill() {
    chunks_.clear();
    int64_t rows = 0;
    for (size_t slot = 0; slot < sequences_.size() && !waiting_.empty(); ++slot) {
      if (sequences_[slot].prompt >= 0) continue;
      const size_t prompt = waiting_.back();
      const auto ids = prompts_[prompt];
      if (rows > 0 && rows + static_cast<int64_t>(ids.size()) > prefill_rows) break;
      rows += static_cast<int64_t>(ids.size());
      waiting_.pop_back();
      const auto slot_id = static_cast<int64_t>(slot);
      sequences_[slot] = {.prompt = static_cast<int64_t>(prompt), .limit = limits_[prompt]};
      cache_->clear(slot_id);
      if (drafts_ != nullptr) drafts_->reset(slot_id);
      chunks_.push_back({.slot = slot_id, .tokens = ids});
    }
    if (chunks_.empty()) return;
    const auto started = clock::now();
    const auto out = model_.forward(*cache_, chunks_, taps_);
    int64_t row = 0;
    std::vector<int64_t> last_rows;
    for (const auto& chunk : chunks_) {
      make_room_for_taps(result(chunk.slot), limits_[prompt_of(chunk.slot)], chunk.tokens.size());
      note_final(chunk.slot, 0, chunk.tokens, row, out.taps);
      row += static_cast<int64_t>(chunk.tokens.size());
      last_rows.push_back(row - 1);
    }
    commit_final(out.taps);
    keys_.clear();
    for (const auto& chunk : chunks_) add_key(chunk.slot, cache_->length(chunk.slot));
    const auto first = draw(select_rows(out.hidden, last_rows));
    for (size_t i = 0; i < chunks_.size(); ++i) accept(chunks_[i].slot, {&first[i], 1});
    const double seconds = seconds_since(started);
    for (const auto& chunk : chunks_) result(chunk.slot).stats.prefill_seconds += seconds;
    release_done();
  }

  // One verify pass over all sequences at work.
  void verify() {
    const auto started = clock::now();
    propose();
    chunks_.clear();
    size_t next_draft = 0;
    for (size_t slot = 0; slot < sequences_.size(); ++slot) {
      if (sequences_[slot].prompt < 0) continue;
      auto& block = blocks_[slot];
      block.assign(1, sequences_[slot].anchor);
      if (next_draft < requests_.size() &&
          requests_[next_draft].slot == static_cast<int64_t>(slot)) {
        const auto& tokens = drafted_[next_draft++];
        block.insert(block.end(), tokens.begin(), tokens.end());
      }
      chunks_.push_back({.slot = static_cast<int64_t>(slot), .tokens = block});
    }
    const auto out = model_.forward(*cache_, chunks_, taps_);
    keys_.clear();
    for (const auto& chunk : chunks_) {
      const auto rows = static_cast<int64_t>(chunk.tokens.size());
      const int64_t start = cache_->length(chunk.slot) - rows;
      for (int64_t i = 0; i < rows; ++i) add_key(chunk.slot, start + i + 1);
    }
    const auto best = draw(out.hidden);
    size_t row = 0;
    for (const auto& chunk : chunks_) {
      const auto rows = chunk.tokens.size();
      settle(chunk, std::span{best}.subspan(row, rows), static_cast<int64_t>(row), out.taps);
      row += rows;
    }
    commit_final(out.taps);
    const double seconds = seconds_since(started);
    for (const auto& chunk : chunks_) result(chunk.slot).stats.pass_seconds += seconds;
    release_done();
  }

  void propose() {
    requests_.clear();
    drafted_.clear();
    if (drafts_ == nullptr) return;
    for (size_t slot = 0; slot < sequences_.size(); ++slot) {
      const auto& place = sequences_[slot];
      if (place.prompt < 0) continue;
      const auto slot_id = static_cast<int64_t>(slot);
      const auto made = static_cast<int64_t>(result(slot_id).tokens.size());
      // A pass adds its accepted drafts and one token more: no draft for what the limit would cut.
      const int64_t count = std::min(drafts_->max_drafts(), place.limit - made - 1);
      if (count < 1) continue;
      requests_.push_back({.slot = slot_id,
                           .position = cache_->length(slot_id),
                           .token = place.anchor,
                           .count = count});
    }
    if (!requests_.empty()) drafted_ = drafts_->propose(requests_);
  }

  // The token that the target wants at `position` of a sequence has this key.
  void add_key(int64_t slot, int64_t position) {
    keys_.push_back({options_.first_prompt + prompt_of(slot), static_cast<uint64_t>(position)});
  }

  // The target's own token behind each row, keys_ [n].
  std::vector<int32_t> draw(const at::Tensor& hidden) const {
    return sample_rows(model_.logits(hidden), model_.config().vocab, options_.sampling, keys_);
  }

  // Accepts the drafts of one block that the target agrees with; best[i] is its token behind
  // chunk.tokens[i], and `row` the block's first row of the pass.
  void settle(const target::chunk& chunk,
              std::span<const int32_t> best,
              int64_t row,
              const std::vector<at::Tensor>& taps) {
    const size_t offered = chunk.tokens.size() - 1;
    size_t matched = 0;
    while (matched < offered && chunk.tokens[matched + 1] == best[matched]) ++matched;
    const int64_t start = cache_->length(chunk.slot) - static_cast<int64_t>(chunk.tokens.size());
    // best[0..matched] = the accepted drafts and the target's own token.
    const size_t added = accept(chunk.slot, best.first(matched + 1));
    auto& stats = result(chunk.slot).stats;
    stats.passes += 1;
    stats.committed += static_cast<int64_t>(added);
    stats.drafted += static_cast<int64_t>(offered);
    if (stats.offered_at.size() < offered) {
      stats.offered_at.resize(offered, 0);
      stats.accepted_at.resize(offered, 0);
    }
    for (size_t k = 0; k < offered; ++k) {
      stats.offered_at[k] += 1;
      stats.accepted_at[k] += k < std::min(matched, added) ? 1 : 0;
    }
    // Final are the rows of the anchor and of the accepted drafts. The last token's row does not
    // exist yet: the context of the next block ends before its anchor (dflash.md 2.2, 6.1).
    note_final(chunk.slot, start, chunk.tokens.first(added), row, taps);
    cache_->crop(chunk.slot, start + static_cast<int64_t>(added));
  }

  // Appends new tokens up to end-of-text or limit; how many.
  size_t accept(int64_t slot, std::span<const int32_t> tokens) {
    auto& place = sequences_[static_cast<size_t>(slot)];
    auto& answer = result(slot);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == bad_token)
        throw std::runtime_error("the target's logits are not numbers for prompt " +
                                 std::to_string(place.prompt) + ", new token " +
                                 std::to_string(answer.tokens.size()));
      answer.tokens.push_back(tokens[i]);
      place.anchor = tokens[i];
      const auto& eos = options_.eos;
      const bool ends = std::find(eos.begin(), eos.end(), tokens[i]) != eos.end();
      const bool full = static_cast<int64_t>(answer.tokens.size()) == place.limit;
      if (!ends && !full) continue;
      place.done = true;
      if (ends)
        answer.stop = stop_reason::end_of_text;
      else
        answer.stop = place.limit < options_.max_new_tokens ? stop_reason::position_limit
                                                            : stop_reason::token_limit;
      return i + 1;
    }
    return tokens.size();
  }

  void make_room_for_taps(decoded& answer, int64_t limit, size_t prompt_tokens) const {
    const auto rows = static_cast<int64_t>(prompt_tokens) + limit - 1;
    for (size_t j = 0; j < options_.keep_taps.size(); ++j)
      answer.taps.push_back(
          at::empty({rows, model_.config().hidden}, model_.embedding().options()));
  }

  void note_final(int64_t slot,
                  int64_t start,
                  std::span<const int32_t> tokens,
                  int64_t row,
                  const std::vector<at::Tensor>& taps) {
    auto& answer = result(slot);
    for (size_t j = 0; j < answer.taps.size(); ++j) {
      const auto count = static_cast<int64_t>(tokens.size());
      answer.taps[j].narrow(0, start, count).copy_(taps[j].narrow(0, row, count));
    }
    if (drafts_ == nullptr || sequences_[static_cast<size_t>(slot)].done) return;
    final_rows_.push_back({.slot = slot, .start = start, .tokens = tokens});
    for (size_t i = 0; i < tokens.size(); ++i)
      final_indices_.push_back(row + static_cast<int64_t>(i));
  }

  // Hands the noted rows to the proposer.
  void commit_final(const std::vector<at::Tensor>& taps) {
    if (!final_rows_.empty()) {
      std::vector<at::Tensor> selected;
      if (!drafts_->taps().empty())
        for (const auto& tap : taps) selected.push_back(select_rows(tap, final_indices_));
      drafts_->commit(final_rows_, selected);
    }
    final_rows_.clear();
    final_indices_.clear();
  }

  void release_done() {
    for (auto& place : sequences_) {
      if (!place.done) continue;
      auto& answer = results_[static_cast<size_t>(place.prompt)];
      const auto rows = static_cast<int64_t>(prompts_[static_cast<size_t>(place.prompt)].size() +
                                             answer.tokens.size()) -
                        1;
      for (auto& tap : answer.taps) tap = tap.narrow(0, 0, rows);
      place = {};
    }
  }

  size_t prompt_of(int64_t slot) const {
    return static_cast<size_t>(sequences_[static_cast<size_t>(slot)].prompt);
  }
  decoded& result(int64_t slot) { return results_[prompt_of(slot)]; }

  const target& model_;
  std::span<const std::span<const int32_t>> prompts_;
  proposer* drafts_;  // not owned; may be null
  decode_options options_;
  std::vector<int> taps_;            // asked of the target
  std::vector<decoded> results_;     // [prompt]
  std::vector<int64_t> limits_;      // [prompt] new tokens allowed
  std::vector<size_t> waiting_;      // prompts, next one last
  std::vector<sequence> sequences_;  // [slot]
  std::optional<kv_cache> cache_;    // holds all rows but the anchor's
  // Of the pass at work:
  std::vector<target::chunk> chunks_;
  std::vector<sampling_key> keys_;             // of the rows that are drawn from
  std::vector<std::vector<int32_t>> blocks_;   // [slot] anchor and drafts
  std::vector<draft_request> requests_;        // ascending slots
  std::vector<std::vector<int32_t>> drafted_;  // [request]
  std::vector<committed_rows> final_rows_;
  std::vector<int64_t> final_indices_;  // rows of the pass that final_rows_ name
};

}  // namespace

void decode_stats::add(const decode_stats& other) {
  passes += other.passes;
  committed += other.committed;
  drafted += other.drafted;
  pass_seconds += other.pass_seconds;
  prefill_seconds += other.prefill_seconds;
  const size_t size = std::max(offered_at.size(), other.offered_at.size());
  offered_at.resize(size, 0);
  accepted_at.resize(size, 0);
  for (size_t k = 0; k < other.offered_at.size(); ++k) {
    offered_at[k] += other.offered_at[k];
    accepted_at[k] += other.accepted_at[k];
  }
}

std::vector<decoded> decode_prompts(const target& model,
                                    std::span<const std::span<const int32_t>> prompts,
                                    proposer* drafts,
                                    const decode_options& options) {
  DFLASH_CHECK(options.max_slots >= 1 && options.max_new_tokens >= 0, "decode options");
  const c10::InferenceMode no_autograd;
  return decode_loop{model, prompts, drafts, options}.run();
}

}  // namespace dflash

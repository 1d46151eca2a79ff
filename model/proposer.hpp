#pragma once
// The part of speculative decoding that guesses: what the decode loop and the walk need from a
// drafter, be it a trained one (drafter_decode.hpp) or prompt lookup (lookup.hpp).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

/// Rows of one sequence that became final: tokens at positions start, start + 1, …
struct committed_rows {
  int64_t slot = 0;
  int64_t start = 0;
  std::span<const int32_t> tokens;
};

/// A block to draft: `token` stands at `position` of the sequence in `slot` (the anchor, not yet
/// run through the target); wanted are tokens for the next `count` positions, 1 ≤ count ≤
/// max_drafts().
struct draft_request {
  int64_t slot = 0;
  int64_t position = 0;
  int32_t token = 0;
  int64_t count = 0;
};

/// Not thread-safe: one decode loop or walk owns one proposer.
class proposer {
public:
  virtual ~proposer() = default;

  /// Most tokens drafted for one anchor (B − 1 of a DFlash drafter).
  virtual int64_t max_drafts() const = 0;

  /// Target layers whose outputs commit() wants; empty = none.
  virtual std::span<const int> taps() const = 0;

  /// Forgets everything and makes room for `slots` sequences of at most `capacity` positions.
  virtual void start(int64_t slots, int64_t capacity) = 0;

  /// Forgets the sequence of one slot.
  virtual void reset(int64_t slot) = 0;

  /// Appends final rows. taps[j] is [n, Ht] with the rows of all entries of `rows` in order.
  /// Each entry must begin where its slot ends.
  virtual void commit(std::span<const committed_rows> rows,
                      const std::vector<at::Tensor>& taps) = 0;

  /// Drafts for all requests; result [request], of at most `count` tokens each (none = no guess).
  /// A request sees only committed rows before its position, even if the slot holds later ones, and
  /// the slot must hold all of those: that is what lets a walk ask for every position of a stored
  /// answer.
  virtual std::vector<std::vector<int32_t>> propose(std::span<const draft_request> requests) = 0;
};

}  // namespace dflash

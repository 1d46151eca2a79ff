// batch k = a pure function of (documents, row_tokens, anchors, seed, k): which row, and where its
// anchors stand. Nothing is kept between calls, so any batch can be made again from its number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/packing.hpp"
#include "data/shards.hpp"

namespace dflash {

/// One row of T tokens and its A anchors. Shapes never vary within a run.
struct batch {
  uint64_t k = 0;
  uint64_t epoch = 0;
  int64_t row = 0;                    // index of the packed row: the same tokens in every epoch
  std::vector<int32_t> input_ids;     // [T]
  std::vector<int32_t> doc_offsets;   // [docs + 1], last = T; tail padding is its own last document
  int32_t real_docs = 0;              // docs without the padding
  std::vector<uint8_t> loss_mask;     // [T], padding 0
  std::vector<int32_t> anchors;       // [A] positions in the row: valid ones rising, then zeros
  std::vector<uint8_t> anchor_valid;  // [A] 1 or 0; an invalid anchor stands at 0 and has weight 0
  std::vector<int32_t> prefix;        // [A] true tokens at the head of a block, the anchor counted,
                                      // none of which is supervised; empty: 1 everywhere
  std::vector<int64_t> documents;     // [real_docs] ids in the token_set
};

/// Splits A slots over documents in proportion to `supervised` (largest remainder, ties to the
/// lower document), none above `candidates`. What a full document cannot take goes round again to
/// the others in the same proportion; slots are left over only when all candidates are taken.
std::vector<int64_t> anchor_quotas(std::span<const int64_t> supervised,
                                   std::span<const int64_t> candidates,
                                   int64_t anchors);

/// Variable prefix (arXiv 2606.04446): blocks show l true tokens with probability ~ ratio^l. 0: the
/// anchor alone.
struct prefix_draw {
  double ratio = 0;
  int64_t block_size = 2;
};

/// The order of an epoch's rows, kept by whoever asks for its batches one after the other: making
/// it takes time with the number of rows.
struct epoch_order {
  uint64_t epoch = 0;
  std::vector<int32_t> rows;  // [place]; empty: of no epoch yet
};

/// Immutable after construction; make() may be called by any number of threads.
class batch_source {
public:
  /// Packs the documents. Throws error for a document longer than a row, and if no document has two
  /// neighbouring supervised tokens (no anchor could ever be drawn).
  batch_source(token_set documents,
               int64_t row_tokens,
               int64_t anchors,
               uint64_t seed,
               int32_t pad_token = 0,
               prefix_draw prefix = {});

  int64_t rows() const { return static_cast<int64_t>(packed_.rows.size()); }
  int64_t row_tokens() const { return packed_.row_tokens; }
  int64_t anchors() const { return anchors_; }
  const token_set& documents() const { return documents_; }
  double padding_share() const { return packed_.padding_share(documents_); }

  /// Epoch k / rows(), place k % rows() in that epoch's permutation of the rows; anchors are
  /// redrawn for each k: per document, without replacement, from p with mask[p] = mask[p + 1] = 1
  /// in it.
  batch make(uint64_t k, epoch_order& kept) const;
  batch make(uint64_t k) const;
  /// The tokens of one row without anchors: what every batch of that row has in common. k and epoch
  /// are 0.
  batch make_row(int64_t row) const;
  /// Row of batch k alone: what make(k).row will be.
  int64_t row_of(uint64_t k, epoch_order& kept) const;

private:
  token_set documents_;
  packed_rows packed_;
  int64_t anchors_;
  uint64_t seed_;
  int32_t pad_token_;
  prefix_draw prefix_;
};

/// Context rows that some valid anchor's block can see, rising. window = the widest of the
/// drafter's layers, 0 = a full layer. Slot k sees t in [max(document start, a + k − W + 1), a)
/// (dflash.md 2.3), so slot 0 sees most and the block size does not matter.
std::vector<int32_t> visible_context(const batch& b, int64_t window);

/// Rows a + k − 1 whose teacher logits the loss reads, rising, each once: k in [1, block_size),
/// anchor valid, a + k in the same document and supervised (dflash.md 4.5).
std::vector<int32_t> teacher_rows(const batch& b, int64_t block_size);

}  // namespace dflash

#include "data/batches.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "config/error.hpp"
#include "data/random.hpp"

namespace dflash {

namespace {

// Hands out 64-bit numbers of a stream one after the other, two per Philox block.
class draws {
public:
  explicit draws(random_stream stream) : stream_(stream) {}
  uint64_t below(uint64_t n) {
    if (next_ % 2 == 0) block_ = stream_.block(next_ / 2);
    const size_t low = next_++ % 2 * 2;
    return random_below(uint64_t{block_[low + 1]} << 32 | block_[low], n);
  }

private:
  random_stream stream_;
  std::array<uint32_t, 4> block_{};
  uint64_t next_ = 0;
};

// One round of largest remainders: `slots` over the documents with room, by weight. Returns what
// was handed out, at least 1 if any document has room.
int64_t hand_out(std::span<const int64_t> supervised,
                 std::span<const int64_t> candidates,
                 int64_t slots,
                 std::vector<int64_t>& quotas) {
  struct claim {
    int64_t remainder;
    size_t document;
  };
  std::vector<claim> claims;
  int64_t total = 0;
  for (size_t d = 0; d < quotas.size(); ++d)
    if (quotas[d] < candidates[d]) total += supervised[d];
  int64_t rest = slots, given = 0;
  const auto give = [&](size_t d, int64_t wanted) {
    const int64_t n = std::min(wanted, candidates[d] - quotas[d]);
    quotas[d] += n;
    given += n;
  };
  for (size_t d = 0; d < quotas.size(); ++d) {
    if (quotas[d] >= candidates[d]) continue;
    const int64_t share = slots * supervised[d];
    claims.push_back({share % total, d});
    rest -= share / total;
    give(d, share / total);
  }
  // Documents stand in rising order, so a stable sort breaks ties to the lower one.
  std::ranges::stable_sort(claims, std::greater{}, &claim::remainder);
  for (int64_t i = 0; i < rest; ++i) give(claims[i].document, 1);
  return given;
}

// Positions p of the row where an anchor of document [begin, end) may stand.
void find_candidates(std::span<const uint8_t> mask,
                     int32_t begin,
                     int32_t end,
                     std::vector<int32_t>& out) {
  out.clear();
  for (int32_t p = begin; p + 1 < end; ++p)
    if (mask[p] != 0 && mask[p + 1] != 0) out.push_back(p);
}

bool has_candidate(std::span<const uint8_t> mask) {
  for (size_t p = 0; p + 1 < mask.size(); ++p)
    if (mask[p] != 0 && mask[p + 1] != 0) return true;
  return false;
}

void draw_anchors(batch& b, uint64_t seed, int64_t anchors) {
  b.anchors.assign(anchors, 0);
  b.anchor_valid.assign(anchors, 0);
  std::vector<std::vector<int32_t>> candidates(b.real_docs);  // [real document] positions
  std::vector<int64_t> supervised(b.real_docs), sizes(b.real_docs);
  for (int32_t d = 0; d < b.real_docs; ++d) {
    const int32_t begin = b.doc_offsets[d], end = b.doc_offsets[d + 1];
    find_candidates(b.loss_mask, begin, end, candidates[d]);
    sizes[d] = narrow<int64_t>(candidates[d].size());
    supervised[d] = std::count(b.loss_mask.begin() + begin, b.loss_mask.begin() + end, 1);
  }
  const auto quotas = anchor_quotas(supervised, sizes, anchors);
  draws random({seed, random_domain::anchors, b.k});
  size_t next = 0;
  for (int32_t d = 0; d < b.real_docs; ++d) {
    auto& pool = candidates[d];
    const int64_t n = sizes[d], quota = quotas[d];
    // The first `quota` places of a Fisher–Yates shuffle: a draw without replacement.
    if (quota < n)
      for (int64_t i = 0; i < quota; ++i) std::swap(pool[i], pool[i + random.below(n - i)]);
    std::sort(pool.begin(), pool.begin() + quota);
    for (int64_t i = 0; i < quota; ++i, ++next) {
      b.anchors[next] = pool[i];
      b.anchor_valid[next] = 1;
    }
  }
}

// l in 1..n with probability ~ ratio^l, n = the last supervised slot of the block, so that a slot
// to learn from is always left.
void draw_prefixes(batch& b, uint64_t seed, const prefix_draw& how) {
  b.prefix.assign(b.anchors.size(), 1);
  const random_stream random{seed, random_domain::prefix, b.k};
  size_t document = 0;
  for (size_t i = 0; i < b.anchors.size(); ++i) {
    if (b.anchor_valid[i] == 0) continue;
    while (b.doc_offsets[document + 1] <= b.anchors[i]) ++document;
    int32_t last = 1;
    const int32_t end = b.doc_offsets[document + 1];
    for (int32_t k = 2; k < how.block_size && b.anchors[i] + k < end; ++k)
      if (b.loss_mask[b.anchors[i] + k] != 0) last = k;
    double total = 0, share = 1;
    for (int32_t l = 0; l < last; ++l, share *= how.ratio) total += share;
    double left = random.uniform(i) * total;
    share = 1;
    while (b.prefix[i] < last && left >= share) {
      left -= share;
      share *= how.ratio;
      ++b.prefix[i];
    }
  }
}

std::vector<int32_t> permutation(int64_t rows, uint64_t seed, uint64_t epoch) {
  std::vector<int32_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  draws random({seed, random_domain::shuffle, epoch});
  for (int64_t i = rows - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  return order;
}

// Calls fn(anchor, begin, end of its document) for each valid anchor in rising order.
template <class Fn>
void each_anchor(const batch& b, Fn fn) {
  size_t document = 0;
  for (size_t i = 0; i < b.anchors.size(); ++i) {
    if (b.anchor_valid[i] == 0) continue;
    while (b.doc_offsets[document + 1] <= b.anchors[i]) ++document;
    fn(b.anchors[i], b.doc_offsets[document], b.doc_offsets[document + 1]);
  }
}

}  // namespace

std::vector<int64_t> anchor_quotas(std::span<const int64_t> supervised,
                                   std::span<const int64_t> candidates,
                                   int64_t anchors) {
  DFLASH_CHECK(supervised.size() == candidates.size(), "both count per document");
  std::vector<int64_t> quotas(supervised.size(), 0);
  int64_t room = 0;
  for (size_t d = 0; d < candidates.size(); ++d) {
    DFLASH_CHECK(candidates[d] <= supervised[d], "candidates are supervised", d);
    room += candidates[d];
  }
  int64_t left = std::min(anchors, room);
  while (left > 0) left -= hand_out(supervised, candidates, left, quotas);
  return quotas;
}

batch_source::batch_source(token_set documents,
                           int64_t row_tokens,
                           int64_t anchors,
                           uint64_t seed,
                           int32_t pad_token,
                           prefix_draw prefix)
    : documents_(std::move(documents)),
      packed_(pack_documents(documents_, row_tokens)),
      anchors_(anchors),
      seed_(seed),
      pad_token_(pad_token),
      prefix_(prefix) {
  DFLASH_CHECK(anchors > 0 && row_tokens <= std::numeric_limits<int32_t>::max(),
               "anchors and row length are in range",
               anchors,
               row_tokens);
  bool any = false;
  for (int64_t d = 0; d < documents_.size() && !any; ++d) any = has_candidate(documents_.mask(d));
  if (!any) {
    throw error(
        "no document has two neighbouring supervised tokens, so that there is nothing to "
        "learn from (" +
            std::to_string(documents_.size()) + " documents, " +
            std::to_string(documents_.supervised()) + " supervised tokens)",
        documents_.size() > 0 ? documents_.where(0) + " and on" : "data.train",
        "the loss mask must be 1 on whole answers of the assistant");
  }
}

int64_t batch_source::row_of(uint64_t k, epoch_order& kept) const {
  const auto n = static_cast<uint64_t>(rows());
  const uint64_t epoch = k / n;
  if (kept.rows.empty() || kept.epoch != epoch) kept = {epoch, permutation(rows(), seed_, epoch)};
  return kept.rows[k % n];
}

batch batch_source::make(uint64_t k) const {
  epoch_order once;
  return make(k, once);
}

batch batch_source::make(uint64_t k, epoch_order& kept) const {
  batch b = make_row(row_of(k, kept));
  b.k = k;
  b.epoch = k / static_cast<uint64_t>(rows());
  draw_anchors(b, seed_, anchors_);
  if (prefix_.ratio > 0) draw_prefixes(b, seed_, prefix_);
  return b;
}

batch batch_source::make_row(int64_t row) const {
  DFLASH_CHECK(row >= 0 && row < rows(), "the row exists", row, rows());
  batch b;
  b.row = row;
  b.documents = packed_.rows[b.row];
  b.real_docs = narrow<int32_t>(b.documents.size());
  b.input_ids.reserve(row_tokens());
  b.loss_mask.reserve(row_tokens());
  b.doc_offsets = {0};
  for (const int64_t d : b.documents) {
    const auto ids = documents_.ids(d);
    const auto mask = documents_.mask(d);
    b.input_ids.insert(b.input_ids.end(), ids.begin(), ids.end());
    b.loss_mask.insert(b.loss_mask.end(), mask.begin(), mask.end());
    b.doc_offsets.push_back(narrow<int32_t>(b.input_ids.size()));
  }
  if (b.doc_offsets.back() < row_tokens()) b.doc_offsets.push_back(narrow<int32_t>(row_tokens()));
  b.input_ids.resize(row_tokens(), pad_token_);
  b.loss_mask.resize(row_tokens(), 0);
  return b;
}

std::vector<int32_t> visible_context(const batch& b, int64_t window) {
  DFLASH_CHECK(window >= 0, "a window has tokens", window);
  std::vector<int32_t> rows;
  int32_t done = 0;  // rows below it are decided
  each_anchor(b, [&](int32_t anchor, int32_t begin, int32_t) {
    int64_t first = begin;
    if (window > 0) first = std::max<int64_t>(first, anchor - window + 1);
    for (int32_t t = std::max(done, static_cast<int32_t>(first)); t < anchor; ++t)
      rows.push_back(t);
    done = std::max(done, anchor);
  });
  return rows;
}

std::vector<int32_t> teacher_rows(const batch& b, int64_t block_size) {
  DFLASH_CHECK(block_size > 0, "a block has slots", block_size);
  std::vector<int32_t> rows;
  int32_t done = 0;  // labels below it are decided
  each_anchor(b, [&](int32_t anchor, int32_t, int32_t end) {
    const auto last = static_cast<int32_t>(std::min<int64_t>(end, anchor + block_size));
    for (int32_t p = std::max(done, anchor + 1); p < last; ++p)
      if (b.loss_mask[p] != 0) rows.push_back(p - 1);
    done = std::max(done, last);
  });
  return rows;
}

}  // namespace dflash

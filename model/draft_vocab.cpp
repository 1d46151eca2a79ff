#include "model/draft_vocab.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <algorithm>

#include "config/error.hpp"

namespace dflash {

std::vector<int32_t> draft_ids(std::span<const int64_t> d2t,
                               std::span<const uint8_t> t2d,
                               const std::string& where) {
  const auto vocab = static_cast<int64_t>(t2d.size());
  const auto refuse = [&](size_t row, const std::string& what) {
    throw error("d2t[" + std::to_string(row) + "] " + what,
                where,
                "d2t[i] is the target's id of draft token i, less i, and t2d marks the same ids");
  };
  for (const uint8_t flag : t2d)
    if (flag > 1)
      throw error("t2d holds a value that is neither true nor false", where, "the file is damaged");
  std::vector<int32_t> ids;
  int64_t before = -1;
  for (size_t i = 0; i < d2t.size(); ++i) {
    // Compared without adding: an offset may be any 64-bit number.
    const auto row = static_cast<int64_t>(i);
    if (d2t[i] < -row || d2t[i] >= vocab - row)
      refuse(i,
             "is " + std::to_string(d2t[i]) + ": token " + std::to_string(row) +
                 " + that is not one of the target's " + std::to_string(vocab));
    const int64_t id = row + d2t[i];
    if (id <= before)
      refuse(i,
             "is token " + std::to_string(id) + " after token " + std::to_string(before) +
                 ": draft tokens must rise");
    if (t2d[static_cast<size_t>(id)] == 0)
      refuse(i, "is token " + std::to_string(id) + ", which t2d does not mark");
    before = id;
    ids.push_back(static_cast<int32_t>(id));
  }
  const auto marked = std::count(t2d.begin(), t2d.end(), 1);
  if (marked != static_cast<int64_t>(ids.size()))
    throw error("t2d marks " + std::to_string(marked) + " tokens and d2t lists " +
                    std::to_string(ids.size()),
                where,
                "take both from one drafter");
  return ids;
}

std::vector<int64_t> d2t_of(std::span<const int32_t> ids) {
  std::vector<int64_t> offsets;
  for (size_t i = 0; i < ids.size(); ++i) offsets.push_back(ids[i] - static_cast<int64_t>(i));
  return offsets;
}

std::vector<uint8_t> t2d_of(std::span<const int32_t> ids, int64_t vocab) {
  std::vector<uint8_t> flags(static_cast<size_t>(vocab), 0);
  for (const int32_t id : ids) flags.at(static_cast<size_t>(id)) = 1;
  return flags;
}

std::vector<int32_t> draft_rows(std::span<const int32_t> ids, int64_t vocab) {
  std::vector<int32_t> rows(static_cast<size_t>(vocab), outside_draft);
  for (size_t i = 0; i < ids.size(); ++i)
    rows.at(static_cast<size_t>(ids[i])) = static_cast<int32_t>(i);
  return rows;
}

at::Tensor draft_head(const at::Tensor& head, const drafter_config& c) {
  if (c.draft_ids.empty()) return head;
  const at::Tensor ids = at::from_blob(const_cast<int32_t*>(c.draft_ids.data()),
                                       {c.draft_vocab()},
                                       at::TensorOptions().dtype(at::kInt));
  return at::index_select(head, 0, ids.to(head.device()));
}

void relabel(slot_plan& plan, std::span<const int32_t> rows) {
  for (size_t i = 0; i < plan.label.size(); ++i)
    if (plan.weight[i] != 0) plan.label[i] = rows[static_cast<size_t>(plan.label[i])];
}

}  // namespace dflash

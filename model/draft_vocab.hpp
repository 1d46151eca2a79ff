// A draft vocabulary: the target's tokens that a drafter can propose (dflash.md 3.4). In files it
// is t2d [V] (whether a token is in it) and d2t [Vd] (target id - row); here the rising target ids
// of its rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/drafter_config.hpp"
#include "model/loss.hpp"

namespace dflash {

// The ids [Vd] that d2t and t2d stand for. Throws dflash::error (where = `where`) for ids out of
// [0, vocab), a token twice, or two tensors that disagree: the rows of a head are picked by t2d, so
// d2t has to name the same tokens in the same, rising order.
std::vector<int32_t> draft_ids(std::span<const int64_t> d2t,
                               std::span<const uint8_t> t2d,
                               const std::string& where);

std::vector<int64_t> d2t_of(std::span<const int32_t> ids);                 // [Vd]
std::vector<uint8_t> t2d_of(std::span<const int32_t> ids, int64_t vocab);  // [V], 0 or 1

// [V]: row of each token in the draft vocabulary, outside_draft where it has none.
inline constexpr int32_t outside_draft = -1;
std::vector<int32_t> draft_rows(std::span<const int32_t> ids, int64_t vocab);

// The rows of the target's head [V, H] that belong to the draft vocabulary, [Vd, H]; the head
// itself where that is the whole one.
at::Tensor draft_head(const at::Tensor& head, const drafter_config& config);

// Labels become rows of the draft vocabulary; outside_draft where the token is not in it.
void relabel(slot_plan& plan, std::span<const int32_t> rows);

}  // namespace dflash

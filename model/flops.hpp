// Floating-point operations of the two models, for the share of a device's peak that is used (MFU):
// two for each multiplication with a weight or within attention; norms, activations and lookups are
// left out, as is usual.
#pragma once

#include <cstdint>

#include "model/drafter_config.hpp"
#include "model/target_config.hpp"

namespace dflash {

/// Of the target's first `layers` layers on a row of `tokens` tokens in documents of `document`
/// tokens each (attention is within documents). No head: capture has none.
double target_row_flops(const target_config& c, int64_t layers, int64_t tokens, double document);

/// Of one batch of the drafter, forward and back: `anchors` blocks on a row of `tokens` tokens,
/// each of which sees half a document of `document` tokens on average. `teacher`: the head runs on
/// the target's rows too.
double drafter_batch_flops(
    const drafter_config& c, int64_t tokens, int64_t anchors, double document, bool teacher);

}  // namespace dflash

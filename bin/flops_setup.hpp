// What a batch costs and what the devices can do, for the share of the peak that a run uses.
#pragma once

#include "bin/training_setup.hpp"
#include "model/target_config.hpp"

namespace dflash {

/// Sets target_flops, drafter_flops and peak_flops of s.parts. Rows are taken to be full of
/// documents of mean length. The peak is that of metrics.peak_flops, or of the lanes' devices by
/// name, or 0.
void set_flops(training_setup& s, const target_config& shape);

}  // namespace dflash

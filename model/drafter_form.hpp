// Which published form a drafter's config.json is written in (dflash.md 3), and what in it this
// program cannot draft with.
#pragma once

#include <string>

#include "model/json_file.hpp"

namespace dflash {

// zlab: config.json of one level, taps named by the layer that puts them out. speculators: the
// layers' keys in transformer_layer_config, taps named by the layer that takes them in.
enum class drafter_form { zlab, speculators };
const char* name_of(drafter_form form);  // "zlab", "speculators"

// The form of a DFlash drafter. Throws dflash::error naming file and key for anything else: models
// that are no drafters, drafters of other kinds (EAGLE, DFlash 2, Domino, DSpark, JetSpec, ...),
// quantised ones, and features of a DFlash drafter that change what its tensors mean.
drafter_form form_of(const json_file& config);

}  // namespace dflash

// What a run leaves to be read when it has ended: summary.json, and the texts of its last lines.
#pragma once

#include <string>
#include <vector>

#include "actors/pipeline.hpp"
#include "actors/service_meter.hpp"
#include "bin/training_setup.hpp"
#include "observe/jsonl.hpp"

namespace dflash {

// "target_forward 0 2, metrics 1"; empty: nobody was restarted.
std::string restarts_text(const std::vector<mailbox_report>& mailboxes);
std::vector<std::string> retired_of(const std::vector<mailbox_report>& mailboxes);
// Null: nothing was evaluated. Lives as long as the outcome.
const evaluation* best_of(const run_outcome& outcome);

// summary.json.
json_object run_summary(const training_setup& s,
                        const pipeline_result& result,
                        const service_meter& meter);

}  // namespace dflash

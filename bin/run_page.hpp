// What can be seen of a run from outside the actor system: its page with /metrics, its event files.
#pragma once

#include <memory>
#include <vector>

#include "actors/run_watch.hpp"
#include "actors/runtime/sink_thread.hpp"
#include "bin/run_folder.hpp"
#include "config/run_config.hpp"
#include "observe/page_server.hpp"

namespace dflash {

/// Throws error unless this process may and could listen at metrics.listen: before a model is
/// loaded.
void check_page(const run_config& config);

/// Serves the page of a run and writes its address into the folder; null: metrics.listen is empty.
std::unique_ptr<page_server> serve_page(const run_config& config,
                                        const run_folder& folder,
                                        const std::shared_ptr<run_watch>& watch);

/// Those that the configuration asks for, beside metrics.jsonl and the console.
std::vector<metrics_sink> make_sinks(const run_config& config,
                                     const run_folder& folder,
                                     uint64_t first_step);

}  // namespace dflash

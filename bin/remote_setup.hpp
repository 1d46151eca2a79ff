// Lanes of other hosts: found, borrowed and built before a run begins, so that what is wrong with
// them is said before anything is written; then they are lanes like others.
#pragma once

#include <caf/all.hpp>

#include <filesystem>
#include <memory>

#include "actors/runtime/network.hpp"
#include "actors/runtime/node_directory.hpp"
#include "bin/training_setup.hpp"

namespace dflash {

/// Whether the layout has any.
bool has_remote_lanes(const run_config& config);

/// Nodes of the configuration, by name. Throws error for an address that cannot be, or that needs
/// TLS.
std::shared_ptr<node_directory> nodes_of(const run_config& config, const network_settings& network);

/// Replaces the targets and drafters of other hosts in `parts`, which has those of this process
/// and, where a drafter is away, an empty place. Waits for nodes as long as net.wait says. `setup`
/// and `system` must outlive the parts. Throws error naming node and key.
void add_remote_lanes(caf::actor_system& system,
                      const training_setup& setup,
                      const network_settings& network,
                      const std::shared_ptr<node_directory>& nodes,
                      const std::filesystem::path& checkpoints,
                      pipeline_parts& parts);

}  // namespace dflash

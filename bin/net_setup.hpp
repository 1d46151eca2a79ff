// The [net] section as the network code wants it.
#pragma once

#include <string>

#include "actors/runtime/network.hpp"
#include "config/run_config.hpp"

namespace dflash {

/// Throws error for a folder without certificates.
network_settings network_of(const net_section& net);
/// Of options of a command: --tls DIR, --insecure.
network_settings network_of(const std::string& tls, bool insecure);

}  // namespace dflash

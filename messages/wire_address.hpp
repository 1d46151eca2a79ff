// Addresses of nodes as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dflash {

struct wire_address {
  std::string host;  // a name, an IPv4 or an IPv6 address (no brackets, with its %zone)
  uint16_t port = 0;

  std::string text() const;  // host:port, [v6]:port
  bool operator==(const wire_address&) const = default;
};

// "host:port", "[v6]:port"; with a default port "host", "v6" and "[v6]" too. `where` names the key
// or option in the error. Blocks never: no name is looked up.
wire_address parse_wire_address(std::string_view text,
                                const std::string& where,
                                std::optional<uint16_t> default_port = {});

// Whether every address of the name is of this machine only (127.0.0.0/8, ::1). Looks the name up;
// false if it has none.
bool is_loopback(const wire_address& address);

}  // namespace dflash

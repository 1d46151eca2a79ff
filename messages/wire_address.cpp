#include "messages/wire_address.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include "config/error.hpp"
#include "messages/wire_socket.hpp"

namespace dflash {

std::string wire_address::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

wire_address parse_wire_address(std::string_view text,
                                const std::string& where,
                                std::optional<uint16_t> default_port) {
  const auto refuse = [&](const std::string& why) -> error {
    return error("\"" + std::string(text) + "\" is no address: " + why,
                 where,
                 default_port ? "HOST or HOST:PORT, e.g. 127.0.0.1:7000, node-a, [::1]:7000"
                              : "HOST:PORT, e.g. 127.0.0.1:7000, node-a:7000, [::1]:7000");
  };
  wire_address address;
  std::optional<std::string_view> port;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) throw refuse("the bracket is not closed");
    address.host = text.substr(1, close - 1);
    if (address.host.find(':') == std::string::npos)
      throw refuse("in brackets stands an IPv6 address");
    const auto rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') throw refuse("after the bracket comes :PORT");
    if (!rest.empty()) port = rest.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {  // IPv6 without a port
    address.host = text;
  } else {
    const auto colon = text.find(':');
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon + 1);
  }
  if (address.host.empty()) throw refuse("it has no host");
  for (const char c : address.host)
    if (static_cast<unsigned char>(c) <= ' ' || c == '/' || c == '[' || c == ']' || c == 127)
      throw refuse("a host has no such character");
  if (!port) {
    if (!default_port)
      throw refuse(address.host.find(':') == std::string::npos
                       ? "it has no port"
                       : "it has no port (an IPv6 address with one goes in brackets)");
    address.port = *default_port;
    return address;
  }
  const char* end = port->data() + port->size();
  const auto [stopped, status] = std::from_chars(port->data(), end, address.port);
  if (status != std::errc() || stopped != end)
    throw refuse("\"" + std::string(*port) + "\" is no port (0 to 65535)");
  return address;
}

bool is_loopback(const wire_address& address) {
  std::vector<endpoint> found;
  try {
    found = resolve(address);
  } catch (const wire_lost&) {
    return false;
  }
  return std::all_of(found.begin(), found.end(), [](const endpoint& e) { return e.is_loopback(); });
}

}  // namespace dflash

#include "bin/net_setup.hpp"

#include <filesystem>

#include "config/error.hpp"
#include "messages/certificates.hpp"

namespace dflash {

namespace {

wire_security security_of(const std::string& tls, bool insecure, const char* where) {
  wire_security security;
  if (!tls.empty()) {
    security = node_folder(tls);
    for (const auto& file : {security.ca, security.certificate, security.key})
      if (!std::filesystem::exists(file))
        throw error("there is no " + file.filename().string(),
                    std::string(where) + " = " + tls,
                    "`dflash cert --help` makes the certificates of a node");
  }
  security.insecure = insecure;
  return security;
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

}  // namespace

network_settings network_of(const net_section& net) {
  return {milliseconds_of(net.heartbeat),
          milliseconds_of(net.timeout),
          security_of(net.tls, net.insecure, "net.tls")};
}

network_settings network_of(const std::string& tls, bool insecure) {
  network_settings settings;
  settings.security = security_of(tls, insecure, "--tls");
  return settings;
}

}  // namespace dflash

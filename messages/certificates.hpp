// A private CA and certificates of nodes signed by it, as PEM: keys on the curve P-256.
#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <string>

#include "messages/wire_limits.hpp"

namespace dflash {

struct certificate_pair {
  std::string certificate;  // PEM
  std::string key;          // PEM, not encrypted: whoever reads it is the node
};

// From an hour ago, so that clocks may differ, to `end`.
struct certificate_time {
  std::chrono::system_clock::time_point begin;
  std::chrono::system_clock::time_point end;
};
certificate_time valid_for(std::chrono::days days);

// Signs certificates of nodes and nothing else.
certificate_pair make_ca(const std::string& name, const certificate_time& time);

// Of a node, good for both ends of a connection; ends with the CA at the latest. `name`: letters,
// digits, dot, dash, underscore. `hosts`: names and addresses under which others connect to it.
// Throws error where name, hosts or the CA are no good.
certificate_pair make_node_certificate(const certificate_pair& ca,
                                       const std::string& name,
                                       std::span<const std::string> hosts,
                                       const certificate_time& time);

// What a folder of `dflash cert` holds.
wire_security node_folder(const std::filesystem::path& folder);  // ca.pem, node.pem, node.key

// Appears under its name when it is complete, and may never be read by others. Throws error.
void write_secret_file(const std::filesystem::path& path, const std::string& content);

}  // namespace dflash

// Certificates in a folder that goes away.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/files.hpp"
#include "messages/certificates.hpp"

namespace dflash {

class certificate_folder {
public:
  certificate_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dflash-tls-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  certificate_folder(const certificate_folder&) = delete;
  certificate_folder& operator=(const certificate_folder&) = delete;
  ~certificate_folder() { std::filesystem::remove_all(folder_); }

  // Files of a node, signed by `ca`.
  wire_security node(const certificate_pair& ca,
                     const std::string& name,
                     const std::vector<std::string>& hosts,
                     const certificate_time& time = valid_for(std::chrono::days(1))) {
    return write(ca.certificate, make_node_certificate(ca, name, hosts, time));
  }
  wire_security write(const std::string& ca, const certificate_pair& node) {
    const auto folder = folder_ / std::to_string(count_++);
    std::filesystem::create_directories(folder);
    const wire_security files = node_folder(folder);
    write_file_atomically(files.ca, ca);
    write_file_atomically(files.certificate, node.certificate);
    write_secret_file(files.key, node.key);
    return files;
  }
  const std::filesystem::path& path() const { return folder_; }

private:
  std::filesystem::path folder_;
  int count_ = 0;
};

inline const certificate_pair& test_ca() {
  static const certificate_pair ca = make_ca("test-ca", valid_for(std::chrono::days(2)));
  return ca;
}

}  // namespace dflash

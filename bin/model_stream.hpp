// A target's folder over a data connection: for nodes that have no copy of their own. The node
// keeps it by content under its cache folder; a transfer that breaks off leaves nothing that is
// ever used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "messages/wire_client.hpp"
#include "messages/wire_message.hpp"

namespace dflash {

namespace lane_call {
inline constexpr const char* file = "file";
}

// Names of the files that make up the model: config.json and the safetensors that count.
std::vector<std::string> model_files(const std::filesystem::path& folder);

// From the run: all files, in order, in pieces.
void send_model(wire_client& to, const std::filesystem::path& folder);

// On the node: takes the calls of send_model. Writes beside `cache`/`hash` and renames when all is
// there and has that content hash; throws std::runtime_error or error otherwise.
class model_receiver {
public:
  model_receiver(std::filesystem::path cache, std::string hash);
  ~model_receiver();  // removes what is not complete
  model_receiver(const model_receiver&) = delete;
  model_receiver& operator=(const model_receiver&) = delete;

  void take(const wire_message& m);

private:
  std::filesystem::path final_, partial_;
  std::string hash_;
  std::string open_name_;
  std::unique_ptr<std::ofstream> open_;
  uint64_t written_ = 0;  // of the open file
};

// ${XDG_CACHE_HOME:-~/.cache}/dflash/models
std::filesystem::path default_model_cache();

}  // namespace dflash

// The JSON part of a safetensors file: parsed and checked as a whole before anybody trusts an
// offset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/safetensors.hpp"

namespace dflash {

struct safetensors_header {
  std::vector<st_tensor> tensors;                 // in the order of the header
  std::unordered_map<std::string, size_t> index;  // name → place in tensors
  std::map<std::string, std::string> metadata;
};

/// json = the header, data_bytes = what follows it in the file. Throws error as
/// safetensors_file::open says; `path` is for messages.
safetensors_header parse_safetensors_header(std::string_view json,
                                            uint64_t data_bytes,
                                            const std::filesystem::path& path);

/// The name in quotes, control characters escaped: names come from files and go to terminals.
std::string quoted_name(std::string_view name);

/// A JSON string of any length; bytes that are not UTF-8 are replaced.
std::string quoted_json(std::string_view text);

}  // namespace dflash

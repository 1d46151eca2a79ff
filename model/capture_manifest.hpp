// What a folder of captured hidden states says about itself (capture.json): everything that decides
// its bytes, so that a training run can tell whether they are the states that it would make.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/batches.hpp"

namespace dflash {

inline constexpr const char* capture_form_rows = "rows";                // packed rows, one file
inline constexpr const char* capture_form_speculators = "speculators";  // one file a document

struct capture_manifest {
  std::string form;         // one of the two above
  std::string target_hash;  // target::content_hash
  std::string dtype;        // "bf16" | "fp32", of the states
  std::vector<int> taps;    // 0-based target layers, output of the layer
  bool last = false;        // the last hidden state, before the final norm, follows the taps
  int64_t width = 0;        // Ht
  std::string data_hash;    // checksum of the documents, in hexadecimal
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t row_tokens = 0;  // T of the packing that the target ran on
  int64_t rows = 0;
  int64_t threads = 0;         // of the target; they change rounding
  std::string device = "cpu";  // kind of the target's, "cpu" or "cuda"; it changes rounding
  std::string program;
  bool complete = false;

  int64_t tensors() const { return static_cast<int64_t>(taps.size()) + (last ? 1 : 0); }
  uint64_t element_bytes() const { return dtype == "bf16" ? 2 : 4; }
  uint64_t token_bytes() const {  // of all tensors
    return static_cast<uint64_t>(tensors() * width) * element_bytes();
  }
  uint64_t record_bytes() const { return static_cast<uint64_t>(row_tokens) * token_bytes(); }
  // Names all that decides the bytes: the fingerprint of the file of rows.
  std::string fingerprint() const;
};

/// The manifest of what a run would capture; form, program and complete are for the caller.
capture_manifest make_manifest(const batch_source& source, const std::vector<int>& taps, bool last);

/// Nothing if the folder holds no capture.json. Throws error naming file and key.
std::optional<capture_manifest> read_manifest(const std::filesystem::path& folder);
void write_manifest(const std::filesystem::path& folder, const capture_manifest& manifest);

/// First thing that differs, for people ("taps are 1 5, wanted are 1 6"), empty if nothing does.
/// `wanted` may ask for less: no last hidden state. Form, threads, device, program and completeness
/// are not compared, nor is the packing in the form of speculators.
std::string manifest_difference(const capture_manifest& found, const capture_manifest& wanted);

std::filesystem::path rows_file(const std::filesystem::path& folder);
/// Of document `i`, counted over all shards of data.train.
std::filesystem::path sample_file(const std::filesystem::path& samples, int64_t i);

}  // namespace dflash

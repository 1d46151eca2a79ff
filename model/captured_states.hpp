// Captured hidden states as a training run reads them, in the place of targets: rows as
// `dflash capture` packed them, or one file a document, as speculators keeps them.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batches.hpp"
#include "data/safetensors.hpp"
#include "model/capture_manifest.hpp"

namespace dflash {

/// Fills the tensors of one batch: a tap each, then the last hidden state if there is one more,
/// [T, Ht]; padding is 0 where it was not captured. Throws error naming the file if it is damaged.
/// Any thread, one at a time.
using hidden_reader = std::function<void(const batch&, std::vector<at::Tensor>&)>;

struct captured_states {
  hidden_reader read;
  std::string form;    // as in the manifest
  bool by_us = true;   // false: no manifest, the target could not be checked
  uint64_t bytes = 0;  // of the states on disk
};

/// Checks everything before the first batch: that the states are of this target, taps, type and
/// documents, that no row or document is missing, and all checksums (rows) or shapes and token ids
/// (documents; that form has no checksums). Reads the whole file of rows once. Throws error naming
/// the file and what differs.
captured_states open_captured_states(const std::filesystem::path& folder,
                                     const capture_manifest& wanted,
                                     std::shared_ptr<const batch_source> source);

namespace detail {

captured_states open_captured_rows(const std::filesystem::path& folder,
                                   const capture_manifest& found,
                                   const capture_manifest& wanted);
captured_states open_captured_samples(const std::filesystem::path& folder,
                                      const capture_manifest& wanted,
                                      std::shared_ptr<const batch_source> source);

/// Throws error unless it is the file of one document: `hidden_states` [tokens, taps + 1, Ht] in
/// `dtype` and `token_ids` int64 [tokens] with these ids. Metadata and other tensors are free.
class sample_states {
public:
  sample_states(const std::filesystem::path& path,
                std::span<const int32_t> ids,
                const capture_manifest& wanted);
  /// Tensor j (taps, then the last hidden state) of all tokens to `into`, [tokens, Ht] packed.
  void copy(int64_t j, std::byte* into) const;

private:
  safetensors_file file_;
  std::span<const std::byte> bytes_;
  int64_t tokens_, layers_;
  uint64_t row_bytes_;
};

}  // namespace detail

}  // namespace dflash

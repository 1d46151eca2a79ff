// Token shards and prompt shards: documents of token ids in safetensors files (docs/formats.md).
// Token shard: input_ids int32 [n], loss_mask uint8 [n], doc_offsets int64 [d + 1]. Prompt shard:
// the same without loss_mask.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace dflash {

/// Documents that own their tokens: prompt shards, and what is about to be written.
struct token_documents {
  std::vector<int32_t> input_ids;          // [n]
  std::vector<uint8_t> loss_mask;          // [n], 0 or 1; empty for prompts
  std::vector<int64_t> doc_offsets = {0};  // [d + 1], rising from 0 to n

  int64_t size() const { return static_cast<int64_t>(doc_offsets.size()) - 1; }
  std::span<const int32_t> ids(int64_t document) const;
  /// Empty for prompts.
  std::span<const uint8_t> mask(int64_t document) const;
  /// Appends one document; mask is empty for prompts, else as long as ids.
  void append(std::span<const int32_t> ids, std::span<const uint8_t> mask);
};

/// All documents of a list of shards, in order, as views: tokens stay in the mapped files (a shard
/// whose tensors are not aligned is copied once). Copies are cheap and share the storage;
/// immutable.
class token_set {
public:
  token_set() = default;
  /// Takes the tokens over. Documents without a mask count as unsupervised.
  token_set(token_documents documents);  // NOLINT: implicit on purpose, both are "documents"

  int64_t size() const { return static_cast<int64_t>(documents_.size()); }
  int64_t tokens() const { return tokens_; }
  int64_t supervised() const { return supervised_; }  // tokens with mask 1
  std::span<const int32_t> ids(int64_t document) const;
  std::span<const uint8_t> mask(int64_t document) const;
  /// CRC-32C of lengths, ids and masks of all documents in order: what a run is trained on,
  /// whatever files it lies in. Reads all tokens.
  uint32_t checksum() const;
  /// "file, document 7" (counted from 0 within its file), for messages.
  std::string where(int64_t document) const;

private:
  friend class token_set_builder;
  struct document {
    const int32_t* ids;
    const uint8_t* mask;
    int32_t length;
    int32_t shard;  // index into shards_
  };
  struct shard {
    std::string name;
    int64_t first_document;
    std::shared_ptr<const void> owner;  // what ids and mask point into
  };
  std::vector<document> documents_;  // [document]
  std::vector<shard> shards_;
  int64_t tokens_ = 0, supervised_ = 0;
};

/// Reads and checks every shard. Throws error naming file, tensor and document for: missing or
/// spare tensors, another dtype or rank, lengths that differ, offsets that do not rise from 0 to n,
/// ids below 0 or ≥ vocab_size, mask values other than 0 and 1, no document, no supervised token at
/// all.
token_set read_token_shards(const std::vector<std::filesystem::path>& paths, int64_t vocab_size);

/// The same checks; refuses a token shard (its documents hold answers). At least one prompt.
token_documents read_prompt_shard(const std::filesystem::path& path, int64_t vocab_size);

/// Atomic. A prompt shard if documents.loss_mask is empty and there are tokens.
void write_token_shard(const std::filesystem::path& path,
                       const token_documents& documents,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dflash

// Writes one table of token documents as an Arrow IPC stream, the form of Hugging Face `datasets`
// on disk: columns input_ids and loss_mask (lists of int64) and seq_len (int64). Format:
// arrow.apache.org/docs/format/Columnar.html; its metadata are FlatBuffers.
#pragma once

#include <filesystem>

#include "data/shards.hpp"

namespace dflash {

/// Atomic; one record batch per 1000 documents. Blocks.
void write_arrow_documents(const std::filesystem::path& path, const token_set& documents);

}  // namespace dflash

#include "data/shards.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors.hpp"
#include "data/safetensors_header.hpp"

namespace dflash {

namespace {

constexpr std::string_view remake_hint =
    "make the shard again with the data tool; docs/formats.md describes the format";

// One checked shard: where its tokens lie and what keeps them alive.
struct shard_contents {
  std::shared_ptr<const void> owner;
  std::span<const int32_t> ids;   // [n]
  std::span<const uint8_t> mask;  // [n], empty for prompts
  std::vector<int64_t> offsets;   // [d + 1]
  int64_t supervised = 0;
};

class shard_reader {
public:
  shard_reader(const std::filesystem::path& path, int64_t vocab_size)
      : file_(safetensors_file::open(path)), vocab_size_(vocab_size) {}

  shard_contents read(bool with_mask) const {
    check_names(with_mask);
    shard_contents shard;
    shard.owner = std::make_shared<safetensors_file>(file_);
    shard.offsets = copy<int64_t>(vector_of("doc_offsets", st_dtype::i64));
    const auto ids = vector_of("input_ids", st_dtype::i32);
    if (is_aligned(ids, st_dtype::i32)) {
      shard.ids = {reinterpret_cast<const int32_t*>(ids.data()), ids.size() / sizeof(int32_t)};
    } else {
      // The format allows any alignment; a copy is read instead of the map.
      auto both = std::make_shared<std::pair<safetensors_file, std::vector<int32_t>>>(
          file_, copy<int32_t>(ids));
      shard.ids = both->second;
      shard.owner = std::move(both);
    }
    if (with_mask) {
      const auto mask = vector_of("loss_mask", st_dtype::u8);
      shard.mask = {reinterpret_cast<const uint8_t*>(mask.data()), mask.size()};
    }
    check_offsets(shard);
    check_ids(shard);
    if (with_mask) check_mask(shard);
    return shard;
  }

private:
  [[noreturn]] void fail(const std::string& what, std::string_view hint = remake_hint) const {
    throw error(what, file_.path().string(), std::string(hint));
  }

  void check_names(bool with_mask) const {
    if (!with_mask && file_.find("loss_mask") != nullptr) {
      fail("this is a token shard (it has a loss_mask), but prompts are needed",
           "prompt shards hold prompts without answers: tools/ renders them");
    }
    if (with_mask && file_.find("loss_mask") == nullptr && file_.find("input_ids") != nullptr) {
      fail("there is no tensor \"loss_mask\": this is a prompt shard",
           "let the target answer the prompts first: dflash generate");
    }
    for (const char* name : {"input_ids", "doc_offsets"}) {
      if (file_.find(name) == nullptr)
        fail("there is no tensor " + quoted_name(name) + "; a shard needs it");
    }
    for (const st_tensor& t : file_.tensors()) {
      if (t.name != "input_ids" && t.name != "doc_offsets" && t.name != "loss_mask")
        fail("tensor " + quoted_name(t.name) + " has no place in a shard");
    }
  }

  std::span<const std::byte> vector_of(const char* name, st_dtype dtype) const {
    const st_tensor& t = file_.at(name);
    if (t.dtype != dtype) {
      fail("tensor " + quoted_name(name) + " is " + std::string(dtype_name(t.dtype)) +
           "; it must be " + std::string(dtype_name(dtype)));
    }
    if (t.shape.size() != 1)
      fail("tensor " + quoted_name(name) + " has the shape " + t.shape_text() +
           "; it must be a vector");
    return file_.bytes(t);
  }

  template <class T>
  static std::vector<T> copy(std::span<const std::byte> bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  void check_offsets(const shard_contents& shard) const {
    const auto tokens = narrow<int64_t>(shard.ids.size());
    const auto& offsets = shard.offsets;
    if (offsets.size() < 2) fail("there is no document: doc_offsets has fewer than two entries");
    if (offsets.front() != 0)
      fail("doc_offsets begins with " + std::to_string(offsets.front()) + "; it must begin with 0");
    for (size_t d = 0; d + 1 < offsets.size(); ++d) {
      const int64_t begin = offsets[d], end = offsets[d + 1];
      if (end > begin && end <= tokens) continue;
      const std::string document = "document " + std::to_string(d);
      if (end == begin)
        fail(document + " is empty (doc_offsets repeats " + std::to_string(begin) + ")");
      if (end < begin) {
        fail("doc_offsets falls from " + std::to_string(begin) + " to " + std::to_string(end) +
             " at " + document);
      }
      fail(document + " ends at token " + std::to_string(end) + ", but input_ids has " +
           std::to_string(tokens));
    }
    if (offsets.back() != tokens) {
      fail("doc_offsets ends at " + std::to_string(offsets.back()) + ", but input_ids has " +
           std::to_string(tokens) + " tokens");
    }
    for (size_t d = 0; d + 1 < offsets.size(); ++d) {
      if (offsets[d + 1] - offsets[d] > std::numeric_limits<int32_t>::max())
        fail("document " + std::to_string(d) + " has more than 2^31 tokens");
    }
  }

  // A first pass without branches finds whether anything is wrong, a second one what and where.
  void check_ids(const shard_contents& shard) const {
    int32_t lowest = 0, highest = -1;
    for (const int32_t id : shard.ids) {
      lowest = std::min(lowest, id);
      highest = std::max(highest, id);
    }
    if (lowest >= 0 && highest < vocab_size_) return;
    const auto bad =
        std::ranges::find_if(shard.ids, [&](int32_t id) { return id < 0 || id >= vocab_size_; });
    fail("token id " + std::to_string(*bad) + place(shard, bad - shard.ids.begin()) +
             " is outside the target's vocabulary of " + std::to_string(vocab_size_),
         "make the shard with the tokenizer of this target");
  }

  void check_mask(shard_contents& shard) const {
    if (shard.mask.size() != shard.ids.size()) {
      fail("loss_mask has " + std::to_string(shard.mask.size()) + " entries, input_ids " +
           std::to_string(shard.ids.size()));
    }
    uint8_t highest = 0;
    int64_t sum = 0;
    for (const uint8_t m : shard.mask) {
      highest = std::max(highest, m);
      sum += m;
    }
    shard.supervised = sum;
    if (highest <= 1) return;
    const auto bad = std::ranges::find_if(shard.mask, [](uint8_t m) { return m > 1; });
    fail("loss_mask is " + std::to_string(*bad) + place(shard, bad - shard.mask.begin()) +
         "; only 0 and 1 make sense");
  }

  static std::string place(const shard_contents& shard, int64_t token) {
    const auto next = std::ranges::upper_bound(shard.offsets, token);
    const int64_t document = next - shard.offsets.begin() - 1;
    return " at token " + std::to_string(token - shard.offsets[document]) + " of document " +
           std::to_string(document);
  }

  safetensors_file file_;
  int64_t vocab_size_;
};

}  // namespace

std::span<const int32_t> token_documents::ids(int64_t document) const {
  const int64_t begin = doc_offsets.at(document), end = doc_offsets.at(document + 1);
  return std::span(input_ids).subspan(begin, end - begin);
}

std::span<const uint8_t> token_documents::mask(int64_t document) const {
  if (loss_mask.empty()) return {};
  const int64_t begin = doc_offsets.at(document), end = doc_offsets.at(document + 1);
  return std::span(loss_mask).subspan(begin, end - begin);
}

void token_documents::append(std::span<const int32_t> ids, std::span<const uint8_t> mask) {
  DFLASH_CHECK(!ids.empty(), "a document has tokens");
  DFLASH_CHECK(mask.empty() || mask.size() == ids.size(), "one mask value per token", mask.size());
  DFLASH_CHECK(size() == 0 || mask.empty() == loss_mask.empty(),
               "all documents have a mask or none");
  input_ids.insert(input_ids.end(), ids.begin(), ids.end());
  loss_mask.insert(loss_mask.end(), mask.begin(), mask.end());
  doc_offsets.push_back(narrow<int64_t>(input_ids.size()));
}

// Adds shards to a token_set one after the other.
class token_set_builder {
public:
  void add(std::string name, const shard_contents& shard) {
    const auto index = narrow<int32_t>(set_.shards_.size());
    set_.shards_.push_back({std::move(name), set_.size(), shard.owner});
    set_.documents_.reserve(set_.documents_.size() + shard.offsets.size() - 1);
    for (size_t d = 0; d + 1 < shard.offsets.size(); ++d) {
      const int64_t begin = shard.offsets[d];
      set_.documents_.push_back({shard.ids.data() + begin,
                                 shard.mask.data() + begin,
                                 narrow<int32_t>(shard.offsets[d + 1] - begin),
                                 index});
    }
    set_.tokens_ += narrow<int64_t>(shard.ids.size());
    set_.supervised_ += shard.supervised;
  }
  token_set take() { return std::move(set_); }

private:
  token_set set_;
};

token_set::token_set(token_documents documents) {
  if (documents.size() == 0) return;
  if (documents.loss_mask.empty()) documents.loss_mask.assign(documents.input_ids.size(), 0);
  DFLASH_CHECK(documents.loss_mask.size() == documents.input_ids.size(),
               "one mask value per token");
  DFLASH_CHECK(documents.doc_offsets.front() == 0 &&
                   std::ranges::is_sorted(documents.doc_offsets) &&
                   documents.doc_offsets.back() == narrow<int64_t>(documents.input_ids.size()),
               "documents cover the tokens");
  const auto owner = std::make_shared<const token_documents>(std::move(documents));
  shard_contents shard{owner, owner->input_ids, owner->loss_mask, owner->doc_offsets, 0};
  for (const uint8_t m : shard.mask) shard.supervised += m;
  token_set_builder builder;
  builder.add("documents in memory", shard);
  *this = builder.take();
}

std::span<const int32_t> token_set::ids(int64_t document) const {
  const auto& d = documents_.at(document);
  return {d.ids, static_cast<size_t>(d.length)};
}

std::span<const uint8_t> token_set::mask(int64_t document) const {
  const auto& d = documents_.at(document);
  return {d.mask, static_cast<size_t>(d.length)};
}

uint32_t token_set::checksum() const {
  uint32_t crc = 0;
  for (int64_t d = 0; d < size(); ++d) {
    const auto length = static_cast<int64_t>(ids(d).size());
    crc = crc32c(std::as_bytes(std::span(&length, 1)), crc);
    crc = crc32c(std::as_bytes(ids(d)), crc);
    crc = crc32c(std::as_bytes(mask(d)), crc);
  }
  return crc;
}

std::string token_set::where(int64_t document) const {
  const auto& shard = shards_.at(documents_.at(document).shard);
  return shard.name + ", document " + std::to_string(document - shard.first_document);
}

token_set read_token_shards(const std::vector<std::filesystem::path>& paths, int64_t vocab_size) {
  if (paths.empty()) {
    throw error("there is no token shard to read", "data.train", "name at least one token shard");
  }
  token_set_builder builder;
  for (const auto& path : paths)
    builder.add(path.string(), shard_reader(path, vocab_size).read(true));
  token_set set = builder.take();
  if (set.supervised() == 0) {
    throw error("none of the " + std::to_string(set.tokens()) +
                    " tokens is supervised: loss_mask is 0 everywhere",
                paths.size() == 1
                    ? paths[0].string()
                    : paths[0].string() + " and " + std::to_string(paths.size() - 1) + " more",
                "the mask must be 1 on the assistant's tokens; check the chat template that the "
                "shards were made with");
  }
  return set;
}

token_documents read_prompt_shard(const std::filesystem::path& path, int64_t vocab_size) {
  shard_contents shard = shard_reader(path, vocab_size).read(false);
  token_documents documents;
  documents.input_ids.assign(shard.ids.begin(), shard.ids.end());
  documents.doc_offsets = std::move(shard.offsets);
  return documents;
}

void write_token_shard(const std::filesystem::path& path,
                       const token_documents& documents,
                       const std::map<std::string, std::string>& metadata) {
  const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
  const auto tokens = narrow<int64_t>(documents.input_ids.size());
  DFLASH_CHECK(documents.doc_offsets.back() == tokens, "documents cover the tokens", tokens);
  std::vector<st_view> tensors = {
      {"doc_offsets", st_dtype::i64, {documents.size() + 1}, bytes(documents.doc_offsets)},
      {"input_ids", st_dtype::i32, {tokens}, bytes(documents.input_ids)}};
  if (!documents.loss_mask.empty()) {
    DFLASH_CHECK(documents.loss_mask.size() == documents.input_ids.size(), "one mask per token");
    tensors.push_back({"loss_mask", st_dtype::u8, {tokens}, bytes(documents.loss_mask)});
  }
  write_safetensors(path, tensors, metadata);
}

}  // namespace dflash

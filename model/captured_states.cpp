#include "model/captured_states.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <utility>

#include "config/error.hpp"
#include "data/hidden_store.hpp"

namespace dflash {

namespace fs = std::filesystem;

namespace {

constexpr const char* hint_again =
    "capture them again: dflash capture RUN.toml --out FOLDER, with the configuration of this run";

std::span<std::byte> bytes_of_tensor(at::Tensor& t) {
  DFLASH_CHECK(t.is_contiguous() && t.is_cpu(), "not a plain tensor in memory");
  return {static_cast<std::byte*>(t.mutable_data_ptr()), t.nbytes()};
}

// Where the files of documents lie: the folder itself, or the one that speculators makes in it.
fs::path samples_folder(const fs::path& folder) {
  const fs::path inner = folder / "hidden_states";
  return fs::is_directory(inner) ? inner : folder;
}

st_dtype stored_type(const capture_manifest& m) {
  return m.dtype == "bf16" ? st_dtype::bf16 : st_dtype::f32;
}

}  // namespace

captured_states open_captured_states(const fs::path& folder,
                                     const capture_manifest& wanted,
                                     std::shared_ptr<const batch_source> source) {
  if (!fs::is_directory(folder))
    throw error("there is no such folder of hidden states",
                "data.hidden_states = " + folder.string(),
                hint_again);
  const auto found = read_manifest(folder);
  if (!found) {
    const fs::path first = sample_file(samples_folder(folder), 0);
    if (!fs::exists(first))
      throw error("the folder holds no captured hidden states: neither capture.json nor " +
                      first.filename().string(),
                  "data.hidden_states = " + folder.string(),
                  hint_again);
    auto states = detail::open_captured_samples(folder, wanted, std::move(source));
    states.by_us = false;
    return states;
  }
  if (const auto why = manifest_difference(*found, wanted); !why.empty())
    throw error("the captured hidden states do not fit this run: " + why,
                (folder / "capture.json").string(),
                hint_again);
  if (!found->complete)
    throw error("the capture is not complete",
                folder.string(),
                "run the same dflash capture again: it goes on where it stopped");
  return found->form == capture_form_rows
             ? detail::open_captured_rows(folder, *found, wanted)
             : detail::open_captured_samples(folder, wanted, std::move(source));
}

namespace detail {

captured_states open_captured_rows(const fs::path& folder,
                                   const capture_manifest& found,
                                   const capture_manifest& wanted) {
  const fs::path path = rows_file(folder);
  std::shared_ptr<const hidden_store> store =
      hidden_store::open_complete(path, found.record_bytes(), found.rows, found.fingerprint());
  const auto damaged = store->verify();
  if (!damaged.empty())
    throw error(
        fmt::format("{} of {} rows are damaged: {}",
                    damaged.size(),
                    found.rows,
                    fmt::join(std::span(damaged).first(std::min<size_t>(damaged.size(), 8)), ", ")),
        path.string(),
        hint_again);
  captured_states states;
  states.form = found.form;
  states.bytes = static_cast<uint64_t>(found.rows) * found.record_bytes();
  // The record may hold a last hidden state that this run does not read.
  const bool skip_last = found.last && !wanted.last;
  const uint64_t tensor_bytes =
      static_cast<uint64_t>(found.row_tokens * found.width) * found.element_bytes();
  states.read =
      [store, path, skip_last, spare = std::vector<std::byte>(skip_last ? tensor_bytes : 0)](
          const batch& b, std::vector<at::Tensor>& into) mutable {
        std::vector<std::span<std::byte>> parts;
        for (at::Tensor& t : into) parts.push_back(bytes_of_tensor(t));
        if (skip_last) parts.emplace_back(spare);
        if (!store->get(b.row, parts))
          throw error(
              fmt::format("row {} is damaged or cannot be read", b.row), path.string(), hint_again);
      };
  return states;
}

sample_states::sample_states(const fs::path& path,
                             std::span<const int32_t> ids,
                             const capture_manifest& wanted)
    : file_(safetensors_file::open(path)), tokens_(static_cast<int64_t>(ids.size())) {
  const auto refuse = [&](const char* tensor, const std::string& what, const char* hint) {
    throw error(what, path.string() + ", " + tensor, hint);
  };
  layers_ = static_cast<int64_t>(wanted.taps.size()) + 1;
  const auto& states = file_.at("hidden_states");
  const std::vector<int64_t> shape = {tokens_, layers_, wanted.width};
  if (states.shape != shape)
    refuse("hidden_states",
           fmt::format("the shape is {}, wanted is [{}] (tokens, taps and the last hidden state, "
                       "width)",
                       states.shape_text(),
                       fmt::join(shape, ", ")),
           "capture with the taps of this run and the documents of data.train");
  if (states.dtype != stored_type(wanted))
    refuse("hidden_states",
           fmt::format(
               "the type is {}, the run computes in {}", dtype_name(states.dtype), wanted.dtype),
           "set target.dtype to the type of the states, or capture again");
  const auto& stored = file_.at("token_ids");
  if (stored.dtype != st_dtype::i64 || stored.shape != std::vector<int64_t>{tokens_})
    refuse("token_ids",
           fmt::format(
               "{} {}, wanted is I64 [{}]", dtype_name(stored.dtype), stored.shape_text(), tokens_),
           hint_again);
  const auto bytes = file_.bytes(stored);
  for (int64_t i = 0; i < tokens_; ++i) {
    int64_t id = 0;
    std::memcpy(&id, bytes.data() + i * 8, 8);
    if (id != ids[static_cast<size_t>(i)])
      refuse(
          "token_ids",
          fmt::format("token {} is {}, in data.train it is {}", i, id, ids[static_cast<size_t>(i)]),
          "document i of data.train belongs to hs_i.safetensors: give the shards that the "
          "states were captured from, in their order");
  }
  bytes_ = file_.bytes(states);
  row_bytes_ = static_cast<uint64_t>(wanted.width) * wanted.element_bytes();
}

void sample_states::copy(int64_t j, std::byte* into) const {
  const std::byte* from = bytes_.data() + static_cast<uint64_t>(j) * row_bytes_;
  for (int64_t i = 0; i < tokens_; ++i, from += static_cast<uint64_t>(layers_) * row_bytes_)
    std::memcpy(into + static_cast<uint64_t>(i) * row_bytes_, from, row_bytes_);
}

captured_states open_captured_samples(const fs::path& folder,
                                      const capture_manifest& wanted,
                                      std::shared_ptr<const batch_source> source) {
  const fs::path samples = samples_folder(folder);
  const token_set& documents = source->documents();
  for (int64_t i = 0; i < documents.size(); ++i) {
    const fs::path path = sample_file(samples, i);
    if (!fs::exists(path))
      throw error(fmt::format("the hidden states of document {} of {} are missing ({})",
                              i,
                              documents.size(),
                              documents.where(i)),
                  path.string(),
                  hint_again);
    sample_states(path, documents.ids(i), wanted);
  }
  captured_states states;
  states.form = capture_form_speculators;
  states.bytes =
      static_cast<uint64_t>(documents.tokens()) *
      static_cast<uint64_t>((static_cast<int64_t>(wanted.taps.size()) + 1) * wanted.width) *
      wanted.element_bytes();
  states.read = [samples, wanted, source = std::move(source)](const batch& b,
                                                              std::vector<at::Tensor>& into) {
    for (at::Tensor& t : into) t.zero_();
    for (int32_t d = 0; d < b.real_docs; ++d) {
      const int64_t document = b.documents[static_cast<size_t>(d)];
      const sample_states stored(
          sample_file(samples, document), source->documents().ids(document), wanted);
      const int64_t begin = b.doc_offsets[static_cast<size_t>(d)];
      for (size_t j = 0; j < into.size(); ++j)
        stored.copy(static_cast<int64_t>(j),
                    bytes_of_tensor(into[j]).data() +
                        static_cast<uint64_t>(begin * wanted.width) * wanted.element_bytes());
    }
  };
  return states;
}

}  // namespace detail

}  // namespace dflash

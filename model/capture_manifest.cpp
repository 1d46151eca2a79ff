#include "model/capture_manifest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/error.hpp"
#include "data/files.hpp"
#include "model/json_file.hpp"

namespace dflash {

namespace {

constexpr const char* manifest_name = "capture.json";
constexpr int64_t manifest_format = 1;
// What a file may claim: sizes made of these do not overflow.
constexpr int64_t most_layers = 4096, most_width = 1 << 20, most_row_tokens = 1 << 24;
constexpr int64_t most_tokens = int64_t{1} << 40;

int64_t count(const json_file& f, const char* key, int64_t most) {
  const int64_t value = f.get_int(key);
  if (value < 0 || value > most)
    throw error(std::to_string(value) + " is not between 0 and " + std::to_string(most),
                f.where(key),
                "the file is damaged: capture the hidden states again");
  return value;
}

std::string list_of(const std::vector<int>& taps) {
  return fmt::format("{}", fmt::join(taps, " "));
}

}  // namespace

std::string capture_manifest::fingerprint() const {
  return fmt::format("capture {} {} {} {} {} {} {}",
                     target_hash,
                     dtype,
                     fmt::join(taps, ","),
                     last,
                     width,
                     data_hash,
                     row_tokens);
}

capture_manifest make_manifest(const batch_source& source,
                               const std::vector<int>& taps,
                               bool last) {
  capture_manifest m;
  m.taps = taps;
  m.last = last;
  m.data_hash = fmt::format("{:08x}", source.documents().checksum());
  m.documents = source.documents().size();
  m.tokens = source.documents().tokens();
  m.row_tokens = source.row_tokens();
  m.rows = source.rows();
  return m;
}

std::optional<capture_manifest> read_manifest(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / manifest_name)) return std::nullopt;
  const json_file f = json_file::open(folder / manifest_name);
  if (f.get_int("format") != manifest_format)
    throw error("the capture has format " + std::to_string(f.get_int("format")) +
                    ", this program knows " + std::to_string(manifest_format),
                f.where("format"),
                "capture the hidden states again");
  capture_manifest m;
  m.form = f.get_string("form");
  if (m.form != capture_form_rows && m.form != capture_form_speculators)
    throw error("unknown form \"" + m.form + "\"", f.where("form"), "rows or speculators");
  m.target_hash = f.get_string("target_hash");
  m.dtype = f.get_string("dtype");
  if (m.dtype != "bf16" && m.dtype != "fp32")
    throw error("unknown type \"" + m.dtype + "\"", f.where("dtype"), "bf16 or fp32");
  for (const int64_t tap : f.get_ints("taps")) {
    if (tap < 0 || tap >= most_layers)
      throw error("there is no layer " + std::to_string(tap), f.where("taps"));
    m.taps.push_back(static_cast<int>(tap));
  }
  if (m.taps.empty() || m.taps.size() > most_layers)
    throw error("a capture has 1 to " + std::to_string(most_layers) + " taps", f.where("taps"));
  m.last = f.get_bool("last");
  m.width = count(f, "width", most_width);
  m.data_hash = f.get_string("data_hash");
  m.documents = count(f, "documents", most_tokens);
  m.tokens = count(f, "tokens", most_tokens);
  m.row_tokens = count(f, "row_tokens", most_row_tokens);
  m.rows = count(f, "rows", most_tokens);
  m.threads = count(f, "target_threads", 1 << 16);
  m.device = f.get_string("device", "cpu");  // older programs know no other
  m.program = f.get_string("program");
  m.complete = f.get_bool("complete");
  return m;
}

void write_manifest(const std::filesystem::path& folder, const capture_manifest& m) {
  nlohmann::ordered_json j;
  j["format"] = manifest_format;
  j["form"] = m.form;
  j["complete"] = m.complete;
  j["target_hash"] = m.target_hash;
  j["dtype"] = m.dtype;
  j["taps"] = m.taps;
  j["last"] = m.last;
  j["width"] = m.width;
  j["data_hash"] = m.data_hash;
  j["documents"] = m.documents;
  j["tokens"] = m.tokens;
  j["row_tokens"] = m.row_tokens;
  j["rows"] = m.rows;
  j["target_threads"] = m.threads;
  j["device"] = m.device;
  j["program"] = m.program;
  write_file_atomically(folder / manifest_name, j.dump(2) + "\n");
}

std::string manifest_difference(const capture_manifest& found, const capture_manifest& wanted) {
  const auto differs = [](const char* what, const auto& is, const auto& should) {
    return fmt::format("{} {}, wanted is {}", what, is, should);
  };
  if (found.target_hash != wanted.target_hash)
    return differs(
        "they are of another target: content hash", found.target_hash, wanted.target_hash);
  if (found.taps != wanted.taps)
    return differs("their taps are", list_of(found.taps), list_of(wanted.taps));
  if (found.dtype != wanted.dtype) return differs("their type is", found.dtype, wanted.dtype);
  if (found.width != wanted.width) return differs("their width is", found.width, wanted.width);
  if (wanted.last && !found.last)
    return "they have no last hidden state, which the loss term kl reads";
  if (found.data_hash != wanted.data_hash || found.documents != wanted.documents ||
      found.tokens != wanted.tokens)
    return fmt::format(
        "they are of other documents: {} with {} tokens and checksum {}, wanted are {} with {} and "
        "{}",
        found.documents,
        found.tokens,
        found.data_hash,
        wanted.documents,
        wanted.tokens,
        wanted.data_hash);
  if (found.form == capture_form_rows &&
      (found.row_tokens != wanted.row_tokens || found.rows != wanted.rows))
    return differs("their rows have", found.row_tokens, wanted.row_tokens) + " tokens";
  return {};
}

std::filesystem::path rows_file(const std::filesystem::path& folder) {
  return folder / "hidden_states.bin";
}

std::filesystem::path sample_file(const std::filesystem::path& samples, int64_t i) {
  return samples / fmt::format("hs_{}.safetensors", i);
}

}  // namespace dflash

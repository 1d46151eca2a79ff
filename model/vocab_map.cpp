#include "model/vocab_map.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "config/error.hpp"
#include "data/npy.hpp"
#include "data/safetensors.hpp"
#include "model/draft_vocab.hpp"
#include "model/folder.hpp"

namespace dflash {

namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little);  // "<i8" is copied as it is

constexpr const char* forms =
    "give a folder or safetensors file with the tensors d2t and t2d, or a pair of files d2t.npy "
    "and t2d.npy";

struct mapping {
  std::vector<int64_t> d2t;  // [Vd]
  std::vector<uint8_t> t2d;  // [V]
  std::string where;
};

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
std::vector<T> read_vector(const fs::path& path, const std::string& type) {
  const npy_array a = read_npy(path);
  if (a.type != type)
    throw error("the type is " + a.type + ", wanted is " + type, path.string(), forms);
  if (a.shape.size() != 1)
    throw error("the array has " + std::to_string(a.shape.size()) + " dimensions, wanted is one",
                path.string(),
                forms);
  return values_of<T>(std::as_bytes(std::span(a.bytes)));
}

mapping read_pair(const fs::path& d2t, const fs::path& t2d) {
  return {read_vector<int64_t>(d2t, "<i8"),
          read_vector<uint8_t>(t2d, "|b1"),
          d2t.string() + " and " + t2d.filename().string()};
}

// "d2t-50.npy" <-> "t2d-50.npy"; nothing for other names.
std::optional<fs::path> other_of_pair(const fs::path& path) {
  std::string name = path.filename().string();
  if (path.extension() != ".npy") return {};
  for (const auto& [from, to] : {std::pair{"d2t", "t2d"}, {"t2d", "d2t"}})
    if (name.starts_with(from)) return path.parent_path() / name.replace(0, 3, to);
  return {};
}

mapping read_named_pair(const fs::path& path) {
  const auto other = other_of_pair(path);
  if (!other) throw error("the name does not say d2t or t2d", path.string(), forms);
  const bool first = path.filename().string().starts_with("d2t");
  return first ? read_pair(path, *other) : read_pair(*other, path);
}

mapping read_tensors(const fs::path& path) {
  const auto file = safetensors_file::open(path);
  const auto take = [&](const char* name, st_dtype dtype) {
    const st_tensor* t = file.find(name);
    if (t == nullptr) throw error("there is no tensor " + std::string(name), path.string(), forms);
    if (t->dtype != dtype || t->shape.size() != 1)
      throw error(std::string(name) + " is " + std::string(dtype_name(t->dtype)) + " " +
                      t->shape_text() + ", wanted is a list of " + std::string(dtype_name(dtype)),
                  path.string(),
                  forms);
    return file.bytes(*t);
  };
  return {values_of<int64_t>(take("d2t", st_dtype::i64)),
          values_of<uint8_t>(take("t2d", st_dtype::boolean)),
          path.string() + ", d2t and t2d"};
}

mapping read_checkpoint(const fs::path& path) {
  auto files = model_folder::open(path);
  for (const char* name : {"d2t", "t2d"})
    if (!files.has(name))
      throw error("the checkpoint has no draft vocabulary: there is no tensor " + std::string(name),
                  path.string(),
                  forms);
  return {files.load_i64("d2t", files.info("d2t").shape),
          files.load_bool("t2d", files.info("t2d").shape),
          path.string() + ", d2t and t2d"};
}

mapping read_folder(const fs::path& path, int64_t wanted) {
  if (fs::exists(path / "config.json")) return read_checkpoint(path);
  std::vector<fs::path> pairs;
  for (const auto& entry : fs::directory_iterator(path)) {
    const auto other = other_of_pair(entry.path());
    if (other && entry.path().filename().string().starts_with("d2t")) pairs.push_back(entry.path());
  }
  if (pairs.empty()) throw error("there is no draft vocabulary", path.string(), forms);
  std::sort(pairs.begin(), pairs.end());
  if (pairs.size() == 1) return read_named_pair(pairs.front());
  const fs::path named = path / ("d2t-" + std::to_string(wanted) + ".npy");
  if (std::find(pairs.begin(), pairs.end(), named) != pairs.end()) return read_named_pair(named);
  std::string list;
  for (const auto& p : pairs) list += " " + p.filename().string();
  throw error("there are several draft vocabularies:" + list,
              path.string(),
              "name one of the files, or its size in draft.vocab_size");
}

}  // namespace

std::vector<int32_t> read_vocab_map(const fs::path& path, int64_t vocab, int64_t wanted) {
  if (!fs::exists(path)) throw error("there is no such file or folder", path.string(), forms);
  mapping m;
  if (fs::is_directory(path)) {
    m = read_folder(path, wanted);
  } else if (path.extension() == ".npy") {
    m = read_named_pair(path);
  } else if (path.extension() == ".safetensors") {
    m = read_tensors(path);
  } else {
    throw error("neither a folder nor a .safetensors or .npy file", path.string(), forms);
  }
  if (static_cast<int64_t>(m.t2d.size()) != vocab)
    throw error("t2d is of " + std::to_string(m.t2d.size()) + " tokens, the target has " +
                    std::to_string(vocab),
                m.where,
                "take the draft vocabulary of a drafter for this target");
  if (m.d2t.empty()) throw error("d2t is empty", m.where, "a draft vocabulary has tokens");
  return draft_ids(m.d2t, m.t2d, m.where);
}

}  // namespace dflash

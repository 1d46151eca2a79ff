#include "data/safetensors_header.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "config/error.hpp"

namespace dflash {

namespace {

constexpr std::string_view damaged_hint =
    "the file is damaged, was not copied in full, or is no safetensors file; get it again";

// Walks the header without building a tree: the only shapes of JSON that may occur are
//   {"__metadata__": {string: string…}, name: {"dtype": string, "shape": [n…], "data_offsets": [n,
//   n]}…}
// and the first deviation throws. So depth is bounded, and no number or string is converted in
// silence.
class header_reader : public nlohmann::json_sax<nlohmann::json> {
public:
  header_reader(const std::filesystem::path& path, safetensors_header& out)
      : path_(path), out_(out) {}

  bool start_object(size_t) override {
    if (at_ == place::before) {
      at_ = place::root;
    } else if (at_ == place::root) {
      at_ = key_ == "__metadata__" ? place::metadata : place::tensor;
      if (at_ == place::metadata && seen_metadata_) fail("__metadata__ stands there twice");
      if (at_ == place::metadata) seen_metadata_ = true;
      if (at_ == place::tensor) begin_tensor();
    } else {
      fail(misplaced("an object"));
    }
    return true;
  }

  bool end_object() override {
    if (at_ == place::tensor) end_tensor();
    at_ = at_ == place::root ? place::after : place::root;
    return true;
  }

  bool key(std::string& name) override {
    if (at_ == place::root) {
      key_ = name;
    } else if (at_ == place::metadata) {
      metadata_key_ = name;
      if (out_.metadata.contains(name))
        fail("metadata key " + quoted_name(name) + " stands there twice");
    } else {
      field_ = name;
      bool& seen = name == "dtype"          ? seen_dtype_
                   : name == "shape"        ? seen_shape_
                   : name == "data_offsets" ? seen_offsets_
                                            : unknown_field(name);
      if (seen) fail(tensor_text() + " has " + name + " twice");
      seen = true;
    }
    return true;
  }

  bool string(std::string& text) override {
    if (at_ == place::metadata) {
      out_.metadata.emplace(metadata_key_, text);
    } else if (at_ == place::tensor && field_ == "dtype") {
      const auto dtype = parse_dtype(text);
      if (!dtype) {
        fail(tensor_text() + " has the type " + quoted_name(text) + ", which is not supported",
             "convert the tensor to a type among F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, "
             "I64…I8, U64…U8, BOOL");
      }
      out_.tensors.back().dtype = *dtype;
    } else {
      fail(misplaced("a string"));
    }
    return true;
  }

  bool start_array(size_t) override {
    if (at_ == place::tensor && field_ == "shape") {
      at_ = place::shape;
    } else if (at_ == place::tensor && field_ == "data_offsets") {
      at_ = place::offsets;
    } else {
      fail(misplaced("a list"));
    }
    return true;
  }

  bool end_array() override {
    if (at_ == place::offsets && offsets_.size() != 2)
      fail(tensor_text() + " needs two data_offsets, not " + std::to_string(offsets_.size()));
    at_ = place::tensor;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (at_ == place::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        fail(tensor_text() + " has a dimension of " + std::to_string(value));
      out_.tensors.back().shape.push_back(static_cast<int64_t>(value));
    } else if (at_ == place::offsets) {
      offsets_.push_back(value);
      if (offsets_.size() > 2) fail(tensor_text() + " has more than two data_offsets");
    } else {
      fail(misplaced("a number"));
    }
    return true;
  }

  bool number_integer(int64_t value) override {
    fail(at_ == place::shape || at_ == place::offsets
             ? tensor_text() + " has the negative number " + std::to_string(value) + " in " + field_
             : misplaced("a number"));
  }
  bool number_float(double, const std::string& text) override {
    fail(at_ == place::shape || at_ == place::offsets
             ? tensor_text() + " has " + quoted_name(text.substr(0, 40)) + " in " + field_ +
                   ", where only whole numbers below 2^64 make sense"
             : misplaced("a number"));
  }
  bool null() override { fail(misplaced("null")); }
  bool boolean(bool) override { fail(misplaced("a truth value")); }
  bool binary(nlohmann::json::binary_t&) override { fail(misplaced("binary data")); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail("the header is no valid JSON in UTF-8 at its byte " + std::to_string(position));
  }

private:
  enum class place { before, root, metadata, tensor, shape, offsets, after };

  [[noreturn]] void fail(const std::string& what, std::string_view hint = damaged_hint) const {
    throw error(what, path_.string(), std::string(hint));
  }

  std::string tensor_text() const { return "tensor " + quoted_name(key_); }

  std::string misplaced(const char* what) const {
    switch (at_) {
      case place::before:
      case place::after:
        return std::string("the header is ") + what + ", not one JSON object";
      case place::root:
        return "the header has " + std::string(what) + " under " + quoted_name(key_);
      case place::metadata:
        return "metadata key " + quoted_name(metadata_key_) + " has " + what +
               "; only strings may stand "
               "there";
      default:
        return tensor_text() + " has " + what + " in " + quoted_name(field_);
    }
  }

  bool& unknown_field(const std::string& name) const {
    fail(tensor_text() + " has the unknown field " + quoted_name(name));
  }

  void begin_tensor() {
    if (!out_.index.emplace(key_, out_.tensors.size()).second)
      fail(tensor_text() + " stands there twice");
    out_.tensors.emplace_back().name = key_;
    offsets_.clear();
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
  }

  void end_tensor() {
    if (!seen_dtype_) fail(tensor_text() + " has no dtype");
    if (!seen_shape_) fail(tensor_text() + " has no shape");
    if (!seen_offsets_) fail(tensor_text() + " has no data_offsets");
    st_tensor& tensor = out_.tensors.back();
    tensor.begin = offsets_[0];
    tensor.end = offsets_[1];
  }

  const std::filesystem::path& path_;
  safetensors_header& out_;
  place at_ = place::before;
  std::string key_, field_, metadata_key_;
  std::vector<uint64_t> offsets_;
  bool seen_metadata_ = false, seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false;
};

// Bytes that the shape asks for; nothing if they do not fit into 63 bits. A zero dimension makes
// the product 0 whatever the others are, so zeros are looked for first.
std::optional<uint64_t> bytes_of(const st_tensor& tensor) {
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
  constexpr auto limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  auto bytes = static_cast<uint64_t>(dtype_size(tensor.dtype));
  for (const int64_t n : tensor.shape) {
    if (bytes > limit / static_cast<uint64_t>(n)) return std::nullopt;
    bytes *= static_cast<uint64_t>(n);
  }
  return bytes;
}

void check_layout(const std::vector<st_tensor>& tensors,
                  uint64_t data_bytes,
                  const std::filesystem::path& path) {
  const auto fail = [&](const st_tensor& t, const std::string& what) {
    throw error(
        "tensor " + quoted_name(t.name) + " " + what, path.string(), std::string(damaged_hint));
  };
  for (const st_tensor& t : tensors) {
    const auto range = "[" + std::to_string(t.begin) + ", " + std::to_string(t.end) + ")";
    if (t.begin > t.end) fail(t, "has data_offsets that run backwards: " + range);
    if (t.end > data_bytes) {
      fail(t,
           "has its data at bytes " + range + ", but only " + std::to_string(data_bytes) +
               " bytes follow the header");
    }
    const auto bytes = bytes_of(t);
    if (!bytes) fail(t, "has the shape " + t.shape_text() + ", which no file can hold");
    if (*bytes != t.end - t.begin) {
      fail(t,
           "needs " + std::to_string(*bytes) + " bytes for " + std::string(dtype_name(t.dtype)) +
               " " + t.shape_text() + ", but its data_offsets span " +
               std::to_string(t.end - t.begin));
    }
  }
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(
      order, {}, [&](size_t i) { return std::pair(tensors[i].begin, tensors[i].end); });
  uint64_t expected = 0;
  for (const size_t i : order) {
    const st_tensor& t = tensors[i];
    if (t.begin < expected) fail(t, "overlaps the tensor before it in the file");
    if (t.begin > expected) {
      fail(t, "leaves a hole of " + std::to_string(t.begin - expected) + " bytes before its data");
    }
    expected = t.end;
  }
  if (expected != data_bytes) {
    throw error(std::to_string(data_bytes - expected) + " bytes follow the last tensor",
                path.string(),
                std::string(damaged_hint));
  }
}

}  // namespace

std::string quoted_json(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string quoted_name(std::string_view name) {
  constexpr size_t longest = 200;
  return quoted_json(name.substr(0, longest)) + (name.size() > longest ? "…" : "");
}

safetensors_header parse_safetensors_header(std::string_view json,
                                            uint64_t data_bytes,
                                            const std::filesystem::path& path) {
  // The format asks for '{' as the first byte; the parser alone would allow blanks and a BOM.
  if (json.empty() || json.front() != '{')
    throw error("the header does not begin with '{'", path.string(), std::string(damaged_hint));
  // The parser takes a zero byte for the end of its input.
  if (json.find('\0') != std::string_view::npos)
    throw error("the header has a zero byte in it", path.string(), std::string(damaged_hint));
  safetensors_header header;
  header_reader reader(path, header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  check_layout(header.tensors, data_bytes, path);
  return header;
}

}  // namespace dflash

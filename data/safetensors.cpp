#include "data/safetensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "config/error.hpp"
#include "data/files.hpp"
#include "data/safetensors_header.hpp"

namespace dflash {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {

constexpr uint64_t max_header_bytes = 100'000'000;  // the limit of the reference implementation

struct dtype_row {
  st_dtype dtype;
  std::string_view name;
  int64_t size;
};
constexpr std::array<dtype_row, 16> dtypes = {{
    {st_dtype::f64, "F64", 8},
    {st_dtype::f32, "F32", 4},
    {st_dtype::f16, "F16", 2},
    {st_dtype::bf16, "BF16", 2},
    {st_dtype::f8_e4m3, "F8_E4M3", 1},
    {st_dtype::f8_e5m2, "F8_E5M2", 1},
    {st_dtype::f8_e8m0, "F8_E8M0", 1},
    {st_dtype::i64, "I64", 8},
    {st_dtype::i32, "I32", 4},
    {st_dtype::i16, "I16", 2},
    {st_dtype::i8, "I8", 1},
    {st_dtype::u64, "U64", 8},
    {st_dtype::u32, "U32", 4},
    {st_dtype::u16, "U16", 2},
    {st_dtype::u8, "U8", 1},
    {st_dtype::boolean, "BOOL", 1},
}};

const dtype_row& row_of(st_dtype dtype) {
  const auto row = std::ranges::find(dtypes, dtype, &dtype_row::dtype);
  DFLASH_CHECK(row != dtypes.end(), "a type of the list", static_cast<int>(dtype));
  return *row;
}

class mapping {
public:
  mapping(int fd, uint64_t size, const std::filesystem::path& path) : size_(size) {
    data_ = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data_ == MAP_FAILED) {
      throw error("cannot map the file: " + std::generic_category().message(errno), path.string());
    }
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() { ::munmap(data_, size_); }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), static_cast<size_t>(size_)};
  }

private:
  void* data_;
  uint64_t size_;
};

}  // namespace

std::string_view dtype_name(st_dtype dtype) {
  return row_of(dtype).name;
}

std::optional<st_dtype> parse_dtype(std::string_view name) {
  const auto row = std::ranges::find(dtypes, name, &dtype_row::name);
  return row == dtypes.end() ? std::nullopt : std::optional(row->dtype);
}

int64_t dtype_size(st_dtype dtype) {
  return row_of(dtype).size;
}

int64_t st_tensor::elements() const {
  // Through the bytes: they were checked, while a product of dimensions may overflow beside a 0.
  return static_cast<int64_t>(end - begin) / dtype_size(dtype);
}

std::string st_tensor::shape_text() const {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

struct safetensors_file::contents {
  contents(int fd, uint64_t size, std::filesystem::path file)
      : path(std::move(file)), map(fd, size, path) {}

  std::filesystem::path path;
  mapping map;
  uint64_t data_begin = 0;  // file offset of the data part
  safetensors_header header;
};

safetensors_file safetensors_file::open(const std::filesystem::path& path) {
  uint64_t size = 0;
  const file_descriptor file = open_regular_file(path, size);
  const auto fail = [&](const std::string& what) {
    throw error(what,
                path.string(),
                "the file is damaged, was not copied in full, or is no safetensors file; get it "
                "again");
  };
  if (size < 8) fail("the file has " + std::to_string(size) + " bytes, too few for a header");
  auto contents = std::make_shared<safetensors_file::contents>(file.get(), size, path);
  const auto bytes = contents->map.bytes();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > max_header_bytes || header_bytes > size - 8) {
    fail("the header claims " + std::to_string(header_bytes) + " bytes; the file has " +
         std::to_string(size) + ", and a header at most " + std::to_string(max_header_bytes));
  }
  contents->data_begin = 8 + header_bytes;
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  contents->header = parse_safetensors_header(json, size - contents->data_begin, path);
  safetensors_file result;
  result.contents_ = std::move(contents);
  return result;
}

const std::vector<st_tensor>& safetensors_file::tensors() const {
  return contents_->header.tensors;
}

const st_tensor* safetensors_file::find(std::string_view name) const {
  const auto& header = contents_->header;
  const auto found = header.index.find(std::string(name));
  return found == header.index.end() ? nullptr : &header.tensors[found->second];
}

const st_tensor& safetensors_file::at(std::string_view name) const {
  const st_tensor* tensor = find(name);
  if (tensor == nullptr) throw error("there is no tensor " + quoted_name(name), path().string());
  return *tensor;
}

std::span<const std::byte> safetensors_file::bytes(const st_tensor& tensor) const {
  return contents_->map.bytes()
      .subspan(contents_->data_begin)
      .subspan(tensor.begin, tensor.end - tensor.begin);
}

const std::map<std::string, std::string>& safetensors_file::metadata() const {
  return contents_->header.metadata;
}

const std::filesystem::path& safetensors_file::path() const {
  return contents_->path;
}

uint64_t safetensors_file::file_size() const {
  return contents_->map.bytes().size();
}

bool is_aligned(std::span<const std::byte> bytes, st_dtype dtype) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(dtype_size(dtype)) == 0;
}

void write_safetensors(const std::filesystem::path& path,
                       std::span<const st_view> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const st_view*> order;
  std::set<std::string_view> names;
  for (const st_view& t : tensors) {
    int64_t bytes = dtype_size(t.dtype);
    for (const int64_t n : t.shape) bytes *= n;
    DFLASH_CHECK(bytes == narrow<int64_t>(t.bytes.size()), "shape and bytes agree", t.name, bytes);
    DFLASH_CHECK(t.name != "__metadata__", "the name belongs to the format");
    DFLASH_CHECK(names.insert(t.name).second, "names are unique", t.name);
    order.push_back(&t);
  }
  std::ranges::sort(order, [](const st_view* a, const st_view* b) {
    const int64_t size_a = dtype_size(a->dtype), size_b = dtype_size(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      header += (header.back() == '{' ? "" : ",") + quoted_json(key) + ":" + quoted_json(value);
    header += "}";
  }
  uint64_t offset = 0;
  for (const st_view* t : order) {
    const st_tensor tensor{t->name, t->dtype, t->shape, offset, offset + t->bytes.size()};
    header += (header.size() == 1 ? "" : ",") + quoted_json(t->name) + ":{\"dtype\":\"" +
              std::string(dtype_name(t->dtype)) + "\",\"shape\":" + tensor.shape_text() +
              ",\"data_offsets\":[" + std::to_string(tensor.begin) + "," +
              std::to_string(tensor.end) + "]}";
    offset = tensor.end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the data part is aligned
  DFLASH_CHECK(header.size() <= max_header_bytes, "the header stays readable", header.size());
  const uint64_t header_bytes = header.size();
  atomic_file file(path);
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const st_view* t : order) file.write(t->bytes);
  file.commit();
}

}  // namespace dflash

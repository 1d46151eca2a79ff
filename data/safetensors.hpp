// Safetensors files: a strict reader over a memory map and an atomic writer. Knows bytes, shapes
// and types only; what the numbers mean is for the caller. Format:
// github.com/huggingface/safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

enum class st_dtype {
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean
};

/// The name that stands in files: "BF16", "F8_E4M3", "BOOL", ...
std::string_view dtype_name(st_dtype dtype);
/// Nothing for a name that this reader does not know.
std::optional<st_dtype> parse_dtype(std::string_view name);
/// Bytes of one element.
int64_t dtype_size(st_dtype dtype);

struct st_tensor {
  std::string name;
  st_dtype dtype = st_dtype::f32;
  std::vector<int64_t> shape;      // empty = scalar
  uint64_t begin = 0, end = 0;     // bytes within the data part
  int64_t elements() const;        // product of the shape, 1 for a scalar
  std::string shape_text() const;  // "[3, 4]"
};

/// An open file. Copies share one read-only mapping, which lives as long as any copy; spans from
/// bytes() do not own it. Everything is const after open(): any number of threads may read.
/// A file that is cut short by somebody else while it is mapped ends the process (SIGBUS).
class safetensors_file {
public:
  /// Throws error naming file and tensor unless: header length within the file and ≤ 100 MB, header
  /// one UTF-8 JSON object that begins with '{', unique names, known types, shape × type = bytes
  /// without overflow, tensors cover the data part without overlap or hole, no bytes after the
  /// last. Unusual but right: no tensors, zero-size tensors, scalars, any order, data at any
  /// alignment.
  static safetensors_file open(const std::filesystem::path& path);

  /// In the order of the header.
  const std::vector<st_tensor>& tensors() const;
  /// nullptr if there is none of that name.
  const st_tensor* find(std::string_view name) const;
  /// Throws error naming file and tensor if there is none.
  const st_tensor& at(std::string_view name) const;
  /// Not aligned for the type in general: read with memcpy, or check is_aligned first.
  std::span<const std::byte> bytes(const st_tensor& tensor) const;
  const std::map<std::string, std::string>& metadata() const;
  const std::filesystem::path& path() const;
  uint64_t file_size() const;

private:
  struct contents;
  std::shared_ptr<const contents> contents_;
};

/// Whether the bytes may be read through a pointer to the type.
bool is_aligned(std::span<const std::byte> bytes, st_dtype dtype);

struct st_view {
  std::string name;
  st_dtype dtype = st_dtype::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes PATH.tmp, fsyncs, renames, fsyncs the folder: PATH is the old file or the new one, never
/// a part. Data is stored by falling element size, so that each tensor is aligned for its type.
/// Blocks. Throws error when the disk refuses; shapes that do not fit their bytes are a broken
/// invariant.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const st_view> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dflash

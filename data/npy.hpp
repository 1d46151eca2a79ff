// NumPy's .npy files: one array, read whole and checked (format: NEP 1). Knows bytes, shape and
// type only; what the numbers mean is for the caller.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dflash {

struct npy_array {
  std::string type;  // as the file has it: "<i8", "|b1", ...
  std::vector<int64_t> shape;
  bool fortran_order = false;
  std::string bytes;  // all that follows the header
};

/// Throws error naming the file unless it is format 1 to 3 with a header of exactly descr (a plain
/// type), fortran_order and shape, and as many bytes as shape and type say.
npy_array read_npy(const std::filesystem::path& path);

}  // namespace dflash

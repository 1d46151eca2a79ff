#include "data/safetensors.hpp"

#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  const memory_file file(data, size);
  decode([&] {
    const auto tensors = safetensors_file::open(file.path());
    for (const st_tensor& t : tensors.tensors()) touch(tensors.bytes(t));
  });
  return 0;
}

#include "model/capture_manifest.hpp"

#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  write_fuzz_file(fuzz_folder() / "capture.json", data, size);
  decode([&] {
    const auto manifest = read_manifest(fuzz_folder());
    DFLASH_CHECK(manifest.has_value(), "the file is there");
    manifest->fingerprint();
    manifest->record_bytes();
  });
  return 0;
}

#include "observe/jsonl.hpp"

#include <fstream>
#include <iterator>

#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  const auto path = fuzz_folder() / "metrics.jsonl";
  write_fuzz_file(path, data, size);
  decode([&] {
    const cut_report cut = truncate_after(path, 100);
    const uint64_t left = std::filesystem::file_size(path);
    DFLASH_CHECK(left + cut.cut_bytes == size, "what is kept and what is cut is the file");
    std::ifstream in(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    DFLASH_CHECK(text == as_text(data, text.size()), "the beginning is left as it was");
    DFLASH_CHECK(truncate_after(path, 100).cut_bytes == 0, "nothing more to cut");
  });
  return 0;
}

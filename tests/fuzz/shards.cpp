#include "data/shards.hpp"

#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  const memory_file file(data, size);
  decode([&] {
    const token_set set = read_token_shards({file.path()}, 1000);
    for (int64_t d = 0; d < set.size(); ++d) {
      touch(std::as_bytes(set.ids(d)));
      touch(std::as_bytes(set.mask(d)));
    }
  });
  decode([&] { read_prompt_shard(file.path(), 1000); });
  return 0;
}

#include "model/drafter_config.hpp"

#include "fuzz_target.hpp"
#include "model/json_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  decode([&] {
    const json_file json = json_file::parse(std::string(as_text(data, size)), "config.json");
    int64_t draft_vocab = 0;
    check_drafter_config(parse_drafter_config(json, draft_vocab), "config.json");
  });
  return 0;
}

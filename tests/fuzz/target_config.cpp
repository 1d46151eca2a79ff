#include "model/target_config.hpp"

#include "fuzz_target.hpp"
#include "model/json_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  decode([&] {
    const json_file json = json_file::parse(std::string(as_text(data, size)), "config.json");
    parse_target_config(json);
  });
  return 0;
}

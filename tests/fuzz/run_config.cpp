#include "config/run_config.hpp"

#include <fstream>

#include "fuzz_target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dflash;
  const memory_file file(data, size);
  decode([&] {
    const run_config config = parse_run_config(file.path());
    const std::string text = to_toml(config);
    const memory_file again(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    DFLASH_CHECK(parse_run_config(again.path()) == config, "what is printed reads back the same");
    validate(config);
  });
  const std::string text(as_text(data, size));
  decode([&] { parse_lane(text); });
  parse_bytes(text);
  decode([&] { parse_run_config({}, {text}); });
  return 0;
}

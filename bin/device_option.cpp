#include "bin/device_option.hpp"

#include <fmt/format.h>

#include "bin/lane_work.hpp"
#include "config/error.hpp"
#include "config/run_config.hpp"
#include "device/devices.hpp"

namespace dflash {

namespace {

// `what` is how the user called it: "lane cuda:1", "cuda:1".
void check_there(const lane_name& lane, const std::string& what, const std::string& key) {
  if (!lane.cuda || !lane.node.empty()) return;
  if (!built_with_cuda())
    throw error(what + " needs a GPU, and this program is built without CUDA",
                key,
                "build it with -DDFLASH_CUDA=ON (docs/gpu.md), or use the CPU");
  const int there = cuda_devices();
  if (lane.index >= there)
    throw error(fmt::format("{} needs a GPU of that number, and this host has {}",
                            what,
                            there == 0 ? std::string("none") : std::to_string(there)),
                key,
                "nvidia-smi lists them, counted from 0; or use the CPU");
}

}  // namespace

void check_device_of_lane(const std::string& lane, const std::string& key) {
  check_there(parse_lane(lane), "lane " + lane, key);
}

c10::Device parse_device(const std::string& given) {
  if (given == "cpu") return at::kCPU;
  if (!given.starts_with("cuda:"))
    throw error("\"" + given + "\" is not a device", "--device", "use cpu, cuda:0, cuda:1, ...");
  lane_name lane;
  try {
    lane = parse_lane(given);
  } catch (const error&) {
    throw error("\"" + given + "\" is not a device", "--device", "use cpu, cuda:0, cuda:1, ...");
  }
  check_there(lane, given, "--device");
  return device_of_lane(lane);
}

compute_dtype choose_compute_dtype(const std::string& name, c10::Device device) {
  return name == "auto" && !device.is_cpu() ? compute_dtype::bf16 : choose_compute_dtype(name);
}

}  // namespace dflash

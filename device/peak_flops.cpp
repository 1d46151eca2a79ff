#include "device/peak_flops.hpp"

#include <algorithm>
#include <array>

namespace dflash {

namespace {

struct known_device {
  std::string_view name;  // without the vendor's
  double flops;           // a second
};

constexpr std::array<known_device, 12> known = {{
    {"B200", 2250e12},
    {"H200", 989.4e12},
    {"H200 NVL", 835e12},
    {"H100 80GB HBM3", 989.4e12},  // SXM
    {"H100 NVL", 835e12},
    {"H100 PCIe", 756e12},
    {"A100-SXM4-40GB", 312e12},
    {"A100-SXM4-80GB", 312e12},
    {"A100-PCIE-40GB", 312e12},
    {"A100-PCIE-80GB", 312e12},
    {"A100 80GB PCIe", 312e12},
    {"GeForce RTX 4090", 165.2e12},
}};

}  // namespace

std::optional<double> known_peak_flops(std::string_view device) {
  constexpr std::string_view vendor = "NVIDIA ";
  if (device.starts_with(vendor)) device.remove_prefix(vendor.size());
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.name == device; });
  if (found == known.end()) return std::nullopt;
  return found->flops;
}

std::optional<double> known_peak_flops(const std::vector<std::string>& devices) {
  if (devices.empty()) return std::nullopt;
  double sum = 0;
  for (const std::string& device : devices) {
    const auto peak = known_peak_flops(std::string_view(device));
    if (!peak) return std::nullopt;
    sum += *peak;
  }
  return sum;
}

}  // namespace dflash

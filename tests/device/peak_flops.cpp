#include "device/peak_flops.hpp"

#include <catch2/catch.hpp>

namespace dflash {

TEST_CASE("peaks are known by the driver's name of a device, and only by all of it") {
  CHECK(known_peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12);
  CHECK(known_peak_flops("NVIDIA H100 PCIe") == 756e12);
  CHECK(known_peak_flops("NVIDIA H200") == 989.4e12);
  CHECK(known_peak_flops("NVIDIA A100-SXM4-80GB") == 312e12);
  CHECK(known_peak_flops("A100-SXM4-40GB") == 312e12);  // older drivers
  CHECK(known_peak_flops("NVIDIA B200") == 2250e12);
  CHECK(known_peak_flops("NVIDIA GeForce RTX 4090") == 165.2e12);
  for (const char* other : {"",
                            "NVIDIA ",
                            "NVIDIA GeForce RTX 4090 D",
                            "NVIDIA H200 MIG 1g.18gb",
                            "NVIDIA H1000",
                            "AMD EPYC 9654",
                            "Tesla T4"}) {
    INFO(other);
    CHECK_FALSE(known_peak_flops(other));
  }
}

TEST_CASE("the peak of several devices is their sum, and unknown if one is") {
  CHECK(known_peak_flops({std::string("NVIDIA H200"), std::string("NVIDIA B200")}) == 3239.4e12);
  CHECK_FALSE(known_peak_flops({std::string("NVIDIA H200"), std::string("a CPU")}));
  CHECK_FALSE(known_peak_flops(std::vector<std::string>{}));
}

}  // namespace dflash

// Philox4x32-10 for device code: the numbers of data/random.hpp's random_stream::block, which the
// tests compare.
#pragma once

#include <cstdint>

#include "device/cuda/launch.hpp"

namespace dflash::cuda {

struct philox_words {
  uint32_t word[4];
};

// Block i (< 2^56) of the stream (seed, domain, key). domain: the value of dflash::random_domain.
DFLASH_HOST_DEVICE inline philox_words philox_block(uint64_t seed,
                                                    uint32_t domain,
                                                    uint64_t key,
                                                    uint64_t i) {
  uint32_t c0 = static_cast<uint32_t>(i);
  uint32_t c1 = static_cast<uint32_t>(i >> 32) | domain << 24;
  uint32_t c2 = static_cast<uint32_t>(key), c3 = static_cast<uint32_t>(key >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0;
    const uint64_t b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace dflash::cuda

#include <openssl/evp.h>
// ISA-L's header wants the C types first.
#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "config/error.hpp"
#include "data/files.hpp"

namespace dflash {

namespace {

class sha256_sum {
public:
  sha256_sum() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    DFLASH_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1,
                 "OpenSSL offers SHA-256");
  }
  void add(std::span<const std::byte> bytes) {
    DFLASH_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1,
                 "SHA-256 takes bytes");
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    DFLASH_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1, "SHA-256 ends");
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += digits[digest[i] >> 4];
      text += digits[digest[i] & 15];
    }
    return text;
  }

private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256(std::span<const std::byte> bytes) {
  sha256_sum sum;
  sum.add(bytes);
  return sum.hex();
}

std::string sha256(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

std::string sha256_file(const std::filesystem::path& path) {
  uint64_t size = 0;
  const file_descriptor file = open_regular_file(path, size);
  sha256_sum sum;
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw error("cannot read the file: " + std::generic_category().message(errno), path.string());
    }
    if (n == 0) return sum.hex();
    sum.add(std::span(buffer).first(static_cast<size_t>(n)));
  }
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far) {
  // crc32_iscsi neither inverts at the start nor at the end, and counts bytes in an int.
  uint32_t state = ~so_far;
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), size_t{1} << 30);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(n), state);
    bytes = bytes.subspan(n);
  }
  return ~state;
}

}  // namespace dflash

// A call of OpenSSL reports by the thread's error queue, which has to be empty before
// (SSL_get_error says so in its manual). CAF never empties it: one stranger who connects and hangs
// up makes the next call for another connection look like a failure, and CAF closes that one; all
// connections share one thread. Nor does CAF put an end to handshakes, and it asks without pause
// while one lasts. The functions here stand in the program's symbol table before those of libssl,
// so CAF's library calls them.
#include "actors/runtime/caf_tls.hpp"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "config/error.hpp"

namespace dflash {

namespace {

using clock = std::chrono::steady_clock;

std::atomic<int64_t> handshake_ms{0};  // 0: no end

template <class Function>
Function* libssl(const char* name, Function*) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  DFLASH_CHECK(found != nullptr, "a function of libssl", name);
  return reinterpret_cast<Function*>(found);
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now().time_since_epoch())
      .count();
}

// A session carries the time of its first step of the handshake.
bool is_too_late(SSL* ssl) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  const int64_t allowed = handshake_ms.load(std::memory_order_relaxed), now = now_ms();
  const auto began = reinterpret_cast<intptr_t>(SSL_get_ex_data(ssl, index));
  if (began == 0) SSL_set_ex_data(ssl, index, reinterpret_cast<void*>(intptr_t{now}));
  return began != 0 && allowed > 0 && now - began > allowed;
}

int handshake(SSL* ssl, int (*step)(SSL*)) {
  // The step then reads the end of the connection, and fails.
  if (is_too_late(ssl)) ::shutdown(SSL_get_fd(ssl), SHUT_RDWR);
  ERR_clear_error();
  return step(ssl);
}

}  // namespace

void mend_caf_tls(std::chrono::milliseconds handshake) {
  handshake_ms = handshake.count();
}

}  // namespace dflash

extern "C" {

int SSL_accept(SSL* ssl) {
  static auto* const original = dflash::libssl("SSL_accept", &SSL_accept);
  return dflash::handshake(ssl, original);
}

int SSL_connect(SSL* ssl) {
  static auto* const original = dflash::libssl("SSL_connect", &SSL_connect);
  return dflash::handshake(ssl, original);
}

int SSL_read(SSL* ssl, void* into, int bytes) {
  static auto* const original = dflash::libssl("SSL_read", &SSL_read);
  ERR_clear_error();
  return original(ssl, into, bytes);
}

int SSL_write(SSL* ssl, const void* from, int bytes) {
  static auto* const original = dflash::libssl("SSL_write", &SSL_write);
  ERR_clear_error();
  return original(ssl, from, bytes);
}

}  // extern "C"

// TLS of data connections by OpenSSL: both sides show a certificate of the same private CA.
#pragma once

#include <memory>
#include <string>

#include "messages/wire_limits.hpp"

struct ssl_ctx_st;

namespace dflash {

using tls_context = std::shared_ptr<ssl_ctx_st>;

// Reads the files. Throws error where one is missing, is no PEM, is out of date, or where key and
// certificate do not belong together.
tls_context make_tls_context(const wire_security& security, bool server);

// What OpenSSL says was wrong, and forgets it; of this thread.
std::string tls_problem();

}  // namespace dflash

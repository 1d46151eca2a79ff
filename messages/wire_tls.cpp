#include "messages/wire_tls.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <system_error>

#include "config/error.hpp"

namespace dflash {

namespace {

constexpr int read_buffer_bytes = 128 << 10;  // several records a system call

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& file) {
  const std::string problem = tls_problem();
  throw error(what + (problem.empty() ? "" : ": " + problem),
              file.string(),
              "`dflash cert --help` says how certificates are made");
}

void check_date(const X509* certificate, const std::filesystem::path& file) {
  const bool early = X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0;
  const bool late = X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0;
  if (!early && !late) return;
  throw error(std::string("this certificate is ") + (late ? "out of date" : "not valid yet"),
              file.string(),
              late ? "make a new one: dflash cert" : "is the clock of this machine right?");
}

}  // namespace

std::string tls_problem() {
  std::string text;
  while (const unsigned long code = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(code);
    const std::string one = reason != nullptr ? reason : "error " + std::to_string(code);
    if (text.find(one) == std::string::npos) text += (text.empty() ? "" : ", ") + one;
  }
  return text;
}

tls_context make_tls_context(const wire_security& security, bool server) {
  ERR_clear_error();
  if (security.certificate.empty() || security.key.empty())
    throw error("TLS needs three files: the CA's certificate, and certificate and key of this node",
                security.ca.string(),
                "`dflash cert --help` says how certificates are made");
  tls_context context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()),
                      SSL_CTX_free);
  if (!context) refuse("cannot start TLS", {});
  SSL_CTX* c = context.get();
  SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
  if (SSL_CTX_load_verify_file(c, security.ca.c_str()) != 1)
    refuse("cannot read the certificate of the CA", security.ca);
  if (SSL_CTX_use_certificate_chain_file(c, security.certificate.c_str()) != 1)
    refuse("cannot read the certificate of this node", security.certificate);
  if (SSL_CTX_use_PrivateKey_file(c, security.key.c_str(), SSL_FILETYPE_PEM) != 1)
    refuse("cannot read the key, or it is not that of the certificate", security.key);
  if (SSL_CTX_check_private_key(c) != 1)
    refuse("the key is not that of the certificate " + security.certificate.string(), security.key);
  check_date(SSL_CTX_get0_certificate(c), security.certificate);
  // A peer without a certificate gets nothing.
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(c, 1);
  // Of the ciphers of TLS 1.3 the quickest where the processor has AES; others stay allowed.
  SSL_CTX_set_ciphersuites(
      c, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
  SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  // Nothing but frames shall make the socket readable.
  SSL_CTX_set_num_tickets(c, 0);
  SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_read_ahead(c, 1);
  SSL_CTX_set_default_read_buffer_len(c, read_buffer_bytes);
  return context;
}

}  // namespace dflash

#include "messages/wire_stream.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

#include "config/error.hpp"

namespace dflash {

namespace {

constexpr const char* peer_closed = "the peer closed the connection";

[[noreturn]] void too_late() {
  throw wire_lost("no sign of life from the peer in time");
}

[[noreturn]] void fail(const char* what, int code) {
  if (code == ETIMEDOUT) too_late();  // the kernel has noticed first
  throw wire_lost(std::string(what) + ": " + std::generic_category().message(code));
}

bool again(int code) {
  return code == EAGAIN || code == EWOULDBLOCK;
}

// OpenSSL's own socket BIO raises SIGPIPE where the peer is gone: this one does not.
int bio_fd(BIO* bio) {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

int bio_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::send(bio_fd(bio), data, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (n < 0 && (again(errno) || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int bio_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = ::recv(bio_fd(bio), data, static_cast<size_t>(size), 0);
  if (n < 0 && (again(errno) || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long bio_control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* socket_bio() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "dflash socket");
    BIO_meth_set_write(m, bio_write);
    BIO_meth_set_read(m, bio_read);
    BIO_meth_set_ctrl(m, bio_control);
    return m;
  }();
  return method;
}

SSL* new_ssl(const tls_context& context, int fd) {
  SSL* ssl = SSL_new(context.get());
  BIO* bio = BIO_new(socket_bio());
  if (ssl == nullptr || bio == nullptr) throw wire_lost("TLS: " + tls_problem());
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  return ssl;
}

}  // namespace

void wire_stream::ssl_free::operator()(ssl_st* ssl) const noexcept {
  SSL_free(ssl);
}

wire_stream::wire_stream(file_descriptor socket) : socket_(std::move(socket)) {}

wire_stream::~wire_stream() = default;

void wire_stream::start_tls_client(const tls_context& context,
                                   const std::string& host,
                                   wire_clock::time_point deadline) {
  ssl_.reset(new_ssl(context, socket_.get()));
  SSL_set_connect_state(ssl_.get());
  X509_VERIFY_PARAM* wanted = SSL_get0_param(ssl_.get());
  const std::string plain = host.substr(0, host.find('%'));  // a zone is no part of a certificate
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, plain.c_str()) != 1) {
    ERR_clear_error();
    X509_VERIFY_PARAM_set_hostflags(
        wanted, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (SSL_set1_host(ssl_.get(), plain.c_str()) != 1) throw wire_lost("TLS: " + tls_problem());
    SSL_set_tlsext_host_name(ssl_.get(), plain.c_str());
  }
  handshake(deadline);
}

void wire_stream::start_tls_server(const tls_context& context, wire_clock::time_point deadline) {
  ssl_.reset(new_ssl(context, socket_.get()));
  SSL_set_accept_state(ssl_.get());
  handshake(deadline);
}

void wire_stream::handshake(wire_clock::time_point deadline) {
  for (;;) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return;
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK)
      throw wire_refused(std::string("the peer's certificate is refused: ") +
                         X509_verify_cert_error_string(verified));
    if (!wait_for_tls(result, deadline))
      throw wire_lost("the peer hung up in the TLS handshake: has it certificates?");
  }
}

std::string wire_stream::peer_name() const {
  if (!ssl_) return {};
  const X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr) return {};
  std::array<char, 256> name{};
  const int size = X509_NAME_get_text_by_NID(
      X509_get_subject_name(certificate), NID_commonName, name.data(), name.size());
  return size > 0 ? std::string(name.data(), static_cast<size_t>(size)) : std::string();
}

bool wire_stream::wait_for_tls(int result, wire_clock::time_point deadline) {
  const int saved = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      if (!wait_for(socket_.get(), POLLIN, deadline)) too_late();
      return true;
    case SSL_ERROR_WANT_WRITE:
      if (!wait_for(socket_.get(), POLLOUT, deadline)) too_late();
      return true;
    case SSL_ERROR_ZERO_RETURN:
      return false;
    case SSL_ERROR_SYSCALL:
      if (saved == 0) return false;
      fail("TLS", saved);
    default:
      break;
  }
  const unsigned long code = ERR_peek_error();
  if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return false;
  const int alert = ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET;
  const std::string problem = tls_problem();
  if (alert >= 0 && alert < 256)
    throw wire_refused(std::string("the peer refuses this side's certificate or TLS: alert \"") +
                       SSL_alert_desc_string_long(alert) + "\"");
  throw wire_lost("TLS: " + problem);
}

size_t wire_stream::read_some(std::span<std::byte> out, wire_clock::time_point deadline) {
  for (;;) {
    if (ssl_) {
      size_t n = 0;
      ERR_clear_error();
      errno = 0;
      const int result = SSL_read_ex(ssl_.get(), out.data(), out.size(), &n);
      if (result == 1) return n;
      if (!wait_for_tls(result, deadline)) return 0;
      continue;
    }
    const ssize_t n = ::recv(socket_.get(), out.data(), out.size(), 0);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR) continue;
    if (!again(errno)) fail("receiving", errno);
    if (!wait_for(socket_.get(), POLLIN, deadline)) too_late();
  }
}

void wire_stream::read(std::span<std::byte> out, wire_clock::time_point deadline) {
  if (!read_unless_closed(out, deadline)) throw wire_lost(peer_closed);
}

bool wire_stream::read_unless_closed(std::span<std::byte> out, wire_clock::time_point deadline) {
  for (size_t done = 0; done < out.size();) {
    const size_t n = read_some(out.subspan(done), deadline);
    if (n == 0 && done == 0) return false;
    if (n == 0) throw wire_lost(peer_closed);
    done += n;
    // A byte a second shall not pass as a sign of life.
    if (done < out.size() && wire_clock::now() >= deadline) too_late();
  }
  return true;
}

void wire_stream::write(std::span<const std::byte> head,
                        std::span<const std::byte> data,
                        wire_clock::time_point deadline) {
  if (!ssl_) return write_plain(head, data, deadline);
  write_tls(head, deadline);
  write_tls(data, deadline);
}

void wire_stream::write_plain(std::span<const std::byte> head,
                              std::span<const std::byte> data,
                              wire_clock::time_point deadline) {
  const auto part = [](std::span<const std::byte> bytes) {
    return iovec{const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  while (!head.empty() || !data.empty()) {
    std::array parts{part(head), part(data)};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (!again(errno)) fail("sending", errno);
      if (!wait_for(socket_.get(), POLLOUT, deadline)) too_late();
      continue;
    }
    if (wire_clock::now() >= deadline) too_late();
    const auto sent = static_cast<size_t>(n), of_head = std::min(sent, head.size());
    head = head.subspan(of_head);
    data = data.subspan(sent - of_head);
  }
}

void wire_stream::write_tls(std::span<const std::byte> bytes, wire_clock::time_point deadline) {
  while (!bytes.empty()) {
    size_t n = 0;
    ERR_clear_error();
    errno = 0;
    const int result = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n);
    if (result == 1) {
      bytes = bytes.subspan(n);
      if (!bytes.empty() && wire_clock::now() >= deadline) too_late();
    } else if (!wait_for_tls(result, deadline)) {
      throw wire_lost(peer_closed);
    }
  }
}

bool wire_stream::wait_readable(wire_clock::time_point deadline) {
  if (ssl_ && SSL_has_pending(ssl_.get())) return true;
  return wait_for(socket_.get(), POLLIN, deadline);
}

void wire_stream::finish(wire_clock::time_point deadline) noexcept {
  if (ssl_) {
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  ::shutdown(socket_.get(), SHUT_WR);
  std::array<std::byte, 4096> ignored;
  try {
    while (wire_clock::now() < deadline && wait_for(socket_.get(), POLLIN, deadline)) {
      const ssize_t n = ::recv(socket_.get(), ignored.data(), ignored.size(), 0);
      if (n == 0 || (n < 0 && !again(errno))) return;
    }
  } catch (const wire_lost&) {  // it has gone
  }
}

void wire_stream::shut() noexcept {
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace dflash

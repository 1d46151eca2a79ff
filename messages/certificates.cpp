#include "messages/certificates.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "config/error.hpp"
#include "data/files.hpp"
#include "messages/wire_tls.hpp"

namespace dflash {

namespace {

template <auto Free>
struct freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <class T, auto Free>
using owned = std::unique_ptr<T, freed<Free>>;
using certificate_ptr = owned<X509, X509_free>;
using key_ptr = owned<EVP_PKEY, EVP_PKEY_free>;
using bio_ptr = owned<BIO, BIO_free>;

// Of calls that fail only where memory or the system's randomness does.
void must(bool done) {
  if (!done) throw std::runtime_error("OpenSSL: " + tls_problem());
}

template <class Write>
std::string pem_of(Write&& write) {
  const bio_ptr bio(BIO_new(BIO_s_mem()));
  must(bio != nullptr && write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

certificate_pair pair_of(X509* certificate, EVP_PKEY* key) {
  return {pem_of([&](BIO* to) { return PEM_write_bio_X509(to, certificate); }),
          pem_of([&](BIO* to) {
            return PEM_write_bio_PrivateKey(to, key, nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

bio_ptr reader_of(const std::string& text) {
  return bio_ptr(BIO_new_mem_buf(text.data(), narrow<int>(text.size())));
}

std::time_t seconds_of(std::chrono::system_clock::time_point time) {
  return std::chrono::system_clock::to_time_t(time);
}

void add_extension(X509* to, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  const owned<X509_EXTENSION, X509_EXTENSION_free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  must(extension != nullptr && X509_add_ext(to, extension.get(), -1) == 1);
}

// Everything but extensions and signature.
certificate_ptr blank(const std::string& name, EVP_PKEY* key, const certificate_time& time) {
  certificate_ptr made(X509_new());
  must(made != nullptr && X509_set_version(made.get(), X509_VERSION_3) == 1);
  std::array<unsigned char, 16> serial{};
  must(RAND_bytes(serial.data(), static_cast<int>(serial.size())) == 1);
  serial[0] = static_cast<unsigned char>((serial[0] & 0x3f) | 0x40);  // positive, of fixed length
  const owned<BIGNUM, BN_free> number(
      BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr));
  must(number != nullptr &&
       BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(made.get())) != nullptr);
  must(ASN1_TIME_set(X509_getm_notBefore(made.get()), seconds_of(time.begin)) != nullptr);
  must(ASN1_TIME_set(X509_getm_notAfter(made.get()), seconds_of(time.end)) != nullptr);
  must(X509_set_pubkey(made.get(), key) == 1);
  must(X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()),
                                  "CN",
                                  MBSTRING_ASC,
                                  reinterpret_cast<const unsigned char*>(name.c_str()),
                                  -1,
                                  -1,
                                  0) == 1);
  return made;
}

key_ptr new_key() {
  key_ptr key(EVP_EC_gen("P-256"));
  must(key != nullptr);
  return key;
}

bool is_plain(const std::string& text, size_t longest) {
  return !text.empty() && text.size() <= longest &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

// "IP:..." or "DNS:..."; host names are plain, so that nothing else slips into the list.
std::string alternative_name(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> ignored{};
  if (::inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
      ::inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1)
    return "IP:" + host;
  if (!is_plain(host, 253))
    throw error("\"" + host + "\" is no host", "--host", "a name or an address without port");
  return "DNS:" + host;
}

}  // namespace

certificate_time valid_for(std::chrono::days days) {
  const auto now = std::chrono::system_clock::now();
  return {now - std::chrono::hours(1), now + days};
}

certificate_pair make_ca(const std::string& name, const certificate_time& time) {
  if (!is_plain(name, 64))
    throw error(
        "\"" + name + "\" is no name for a CA", {}, "letters, digits, dot, dash, underscore");
  const key_ptr key = new_key();
  const certificate_ptr made = blank(name, key.get(), time);
  must(X509_set_issuer_name(made.get(), X509_get_subject_name(made.get())) == 1);
  add_extension(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(made.get(), made.get(), NID_subject_key_identifier, "hash");
  must(X509_sign(made.get(), key.get(), EVP_sha256()) > 0);
  return pair_of(made.get(), key.get());
}

certificate_pair make_node_certificate(const certificate_pair& ca,
                                       const std::string& name,
                                       std::span<const std::string> hosts,
                                       const certificate_time& time) {
  if (!is_plain(name, 64))
    throw error("\"" + name + "\" is no name for a node",
                "--name",
                "letters, digits, dot, dash, underscore; at most 64");
  if (hosts.empty())
    throw error("a node's certificate names at least one host",
                "--host",
                "the name or address under which others connect to it");
  std::string names;
  for (const std::string& host : hosts)
    names += (names.empty() ? "" : ",") + alternative_name(host);
  const certificate_ptr issuer(
      PEM_read_bio_X509(reader_of(ca.certificate).get(), nullptr, nullptr, nullptr));
  const key_ptr issuer_key(
      PEM_read_bio_PrivateKey(reader_of(ca.key).get(), nullptr, nullptr, nullptr));
  if (!issuer || !issuer_key) throw error("this is no CA: " + tls_problem());
  if (X509_check_ca(issuer.get()) != 1) throw error("this certificate is not that of a CA");
  if (X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    tls_problem();
    throw error("the key of the CA is not that of its certificate");
  }
  if (X509_cmp_current_time(X509_get0_notAfter(issuer.get())) < 0)
    throw error("the CA is out of date", {}, "make a new one, and new certificates for all nodes");
  const key_ptr key = new_key();
  const certificate_ptr made = blank(name, key.get(), time);
  int days = 0, seconds = 0;
  must(ASN1_TIME_diff(
           &days, &seconds, X509_get0_notAfter(issuer.get()), X509_get0_notAfter(made.get())) == 1);
  if (days > 0 || seconds > 0)
    must(X509_set1_notAfter(made.get(), X509_get0_notAfter(issuer.get())) == 1);
  must(X509_set_issuer_name(made.get(), X509_get_subject_name(issuer.get())) == 1);
  add_extension(made.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  add_extension(made.get(), issuer.get(), NID_key_usage, "critical,digitalSignature");
  add_extension(made.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  add_extension(made.get(), issuer.get(), NID_subject_key_identifier, "hash");
  add_extension(made.get(), issuer.get(), NID_authority_key_identifier, "keyid:always");
  add_extension(made.get(), issuer.get(), NID_subject_alt_name, names.c_str());
  must(X509_sign(made.get(), issuer_key.get(), EVP_sha256()) > 0);
  return pair_of(made.get(), key.get());
}

wire_security node_folder(const std::filesystem::path& folder) {
  return {.ca = folder / "ca.pem", .certificate = folder / "node.pem", .key = folder / "node.key"};
}

void write_secret_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  const auto fail = [&](int code) {
    ::unlink(temporary.c_str());
    throw error("cannot write the file: " + std::generic_category().message(code), path.string());
  };
  ::unlink(temporary.c_str());
  file_descriptor file(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) fail(errno);
  for (size_t done = 0; done < content.size();) {
    const ssize_t n = ::write(file.get(), content.data() + done, content.size() - done);
    if (n < 0 && errno != EINTR) fail(errno);
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (::fsync(file.get()) != 0) fail(errno);
  file.close();
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail(errno);
  fsync_directory(path.parent_path());
}

}  // namespace dflash

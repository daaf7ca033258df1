// Certificates: a pull speaks to no server that it cannot be sure of.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "io/test_util.h"
#include "pull/pull.h"

namespace qlora {
namespace {

using testing::AllOf;
using testing::HasSubstr;

#ifdef CPPHTTPLIB_OPENSSL_SUPPORT

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

Key MakeKey() {
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(
      EVP_PKEY_CTX_new_id(EVP_PKEY_RSA, nullptr), &EVP_PKEY_CTX_free);
  EVP_PKEY* key = nullptr;
  EVP_PKEY_keygen_init(context.get());
  EVP_PKEY_CTX_set_rsa_keygen_bits(context.get(), 2048);
  EVP_PKEY_keygen(context.get(), &key);
  return {key, &EVP_PKEY_free};
}

// A certificate for `names` ("IP:127.0.0.1") that its own key signs, for an hour from `from_now`
// seconds.
Certificate MakeCertificate(EVP_PKEY* key, const char* names, long from_now) {
  Certificate certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from_now);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), from_now + 3600);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names);
  X509_add_ext(certificate.get(), extension, -1);
  X509_EXTENSION_free(extension);
  X509_sign(certificate.get(), key, EVP_sha256());
  return certificate;
}

// Answers 404 over TLS and counts the requests, whose headers hold the token.
class TlsServer {
 public:
  TlsServer(const char* names, long from_now)
      : key_(MakeKey()),
        certificate_(MakeCertificate(key_.get(), names, from_now)),
        server_(certificate_.get(), key_.get()) {
    server_.Get(".*", [this](const httplib::Request&, httplib::Response& response) {
      ++requests_;
      response.status = 404;
      response.set_header("X-Error-Code", "RepoNotFound");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~TlsServer() {
    server_.stop();
    thread_.join();
  }

  std::string endpoint() const { return fmt::format("https://127.0.0.1:{}", port_); }
  int requests() const { return requests_; }
  void WriteCertificate(const std::filesystem::path& path) const {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"),
                                                               &std::fclose);
    PEM_write_X509(file.get(), certificate_.get());
  }

 private:
  Key key_;
  Certificate certificate_;
  httplib::SSLServer server_;
  std::atomic<int> requests_ = 0;
  int port_ = 0;
  std::thread thread_;
};

class TlsTest : public testing::Test {
 protected:
  TlsTest() { setenv("HF_HUB_CACHE", (scratch_ / "hub").c_str(), 1); }
  ~TlsTest() override {
    unsetenv("HF_HUB_CACHE");
    unsetenv("CURL_CA_BUNDLE");
  }

  // The message of a pull with a token that trusts the certificates in `trusted`. The variable is
  // the first of those that name a file.
  std::string Pulled(const TlsServer& server, const std::filesystem::path& trusted) {
    setenv("CURL_CA_BUNDLE", trusted.c_str(), 1);
    HubSettings settings;
    settings.endpoint = server.endpoint();
    settings.token = "hf_secret";
    settings.retry_seconds = 0.01;
    return ErrorOf([&] {
             Pull(settings, {.repository = ParseHubRepository("org/tiny"), .user_agent = "test"},
                  {});
           })
        .what();
  }

  TemporaryFolder scratch_;
};

TEST_F(TlsTest, ACertificateThatNobodyTrustedSignedIsRefused) {
  const TlsServer server("IP:127.0.0.1", 0);
  const TlsServer other("IP:127.0.0.1", 0);
  other.WriteCertificate(scratch_ / "trusted.pem");
  EXPECT_THAT(Pulled(server, scratch_ / "trusted.pem"),
              AllOf(HasSubstr("127.0.0.1: "), HasSubstr("SSL_CERT_FILE")));
  EXPECT_EQ(server.requests(), 0);
  // The user's word for it, and the answer of the server is read.
  server.WriteCertificate(scratch_ / "trusted.pem");
  EXPECT_THAT(Pulled(server, scratch_ / "trusted.pem"), HasSubstr("no such model"));
  EXPECT_EQ(server.requests(), 1);
}

TEST_F(TlsTest, ACertificateOfAnotherNameOrTimeIsRefused) {
  for (const auto& [names, from_now] :
       {std::pair("IP:127.0.0.2,DNS:example.org", 0L), {"IP:127.0.0.1", -7200L}}) {
    const TlsServer server(names, from_now);
    server.WriteCertificate(scratch_ / "trusted.pem");
    EXPECT_THAT(Pulled(server, scratch_ / "trusted.pem"), HasSubstr("SSL_CERT_FILE")) << names;
    EXPECT_EQ(server.requests(), 0) << names;
  }
}

#else

TEST(TlsTest, NeedsAServer) { GTEST_SKIP() << "cpp-httplib is without TLS"; }

#endif

}  // namespace
}  // namespace qlora

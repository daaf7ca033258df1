#include "pull/content_hash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <new>
#include <span>

#include "base/check.h"

namespace qlora {
namespace {

// The functions of libcrypto return 1 when they succeed.
void CheckDone(int result) {
  if (result != 1) ThrowRuntime("libcrypto cannot compute the hash of a downloaded file");
}

}  // namespace

ContentHash::ContentHash(const EVP_MD* algorithm) : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
  if (context_ == nullptr) throw std::bad_alloc();
  CheckDone(EVP_DigestInit_ex(context_.get(), algorithm, nullptr));
}

ContentHash ContentHash::Sha1() { return ContentHash(EVP_sha1()); }

ContentHash ContentHash::Sha256() { return ContentHash(EVP_sha256()); }

void ContentHash::Update(std::string_view bytes) {
  CheckDone(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

std::string ContentHash::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  CheckDone(EVP_DigestFinal_ex(context_.get(), digest.data(), &size));
  return fmt::format("{:02x}", fmt::join(std::span(digest.data(), size), ""));
}

}  // namespace qlora

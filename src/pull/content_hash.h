// The two hashes by which a hub names the content of files: sha256 of large files, and git's sha1
// of all others, which is the sha1 of "blob <size>", a zero byte, and the content.
#ifndef QLORA_PULL_CONTENT_HASH_H_
#define QLORA_PULL_CONTENT_HASH_H_

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <string_view>

namespace qlora {

// The hash of bytes that come piece by piece, computed by libcrypto. Errors: Runtime when libcrypto
// refuses the algorithm, as a system may be configured.
class ContentHash {
 public:
  static ContentHash Sha1();
  static ContentHash Sha256();

  void Update(std::string_view bytes);
  // In hexadecimal digits. Nothing may follow.
  std::string Finish();

 private:
  explicit ContentHash(const EVP_MD* algorithm);

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace qlora

#endif  // QLORA_PULL_CONTENT_HASH_H_

// The two hashes by which a hub names the content of files: sha256 of large files, and git's sha1
// of all others, which is the sha1 of "blob <size>", a zero byte, and the content.
#ifndef QLORA_PULL_GIT_HASH_H_
#define QLORA_PULL_GIT_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace qlora {

// Collects bytes into blocks of 64, as both hashes need them, and pads the last (FIPS 180-4).
class BlockHash {
 public:
  virtual ~BlockHash() = default;
  void Update(std::string_view bytes);
  // In hexadecimal digits. Nothing may follow.
  std::string Finish();

 protected:
  static constexpr std::size_t kBlockBytes = 64;
  // The big-endian word at index `w` of a block.
  static std::uint32_t WordOf(const unsigned char* block, int w);

 private:
  virtual void AddBlock(const unsigned char* block) = 0;
  virtual std::string Digits() const = 0;

  std::array<unsigned char, kBlockBytes> block_ = {};
  std::size_t used_ = 0;
  std::uint64_t bytes_ = 0;
};

class Sha256 : public BlockHash {
 private:
  void AddBlock(const unsigned char* block) override;
  std::string Digits() const override;

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

class Sha1 : public BlockHash {
 private:
  void AddBlock(const unsigned char* block) override;
  std::string Digits() const override;

  std::array<std::uint32_t, 5> state_ = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476,
                                         0xc3d2e1f0};
};

}  // namespace qlora

#endif  // QLORA_PULL_GIT_HASH_H_

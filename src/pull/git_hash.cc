#include "pull/git_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace qlora {
namespace {

// The first 32 bits of the fractions of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

template <typename Words>
std::string HexOf(const Words& words) {
  std::string digits;
  for (const std::uint32_t word : words) digits += fmt::format("{:08x}", word);
  return digits;
}

}  // namespace

void BlockHash::Update(std::string_view bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (used_ == 0 && bytes.size() >= kBlockBytes) {  // without a copy
      AddBlock(reinterpret_cast<const unsigned char*>(bytes.data()));
      bytes.remove_prefix(kBlockBytes);
      continue;
    }
    const std::size_t part = std::min(bytes.size(), kBlockBytes - used_);
    std::copy_n(bytes.begin(), part, block_.begin() + static_cast<std::ptrdiff_t>(used_));
    used_ += part;
    bytes.remove_prefix(part);
    if (used_ == kBlockBytes) {
      AddBlock(block_.data());
      used_ = 0;
    }
  }
}

// Pads the text to whole blocks of 64 bytes:
//
//   text | 0x80 | zeros | number of bits of the text, big-endian
//    n      1     0..63              8
//
// The remainder of 1 + zeros + n + 8 by 64 is 0, so 1 + (64 + 55 - n) mod 64 bytes come before the
// number.
std::string BlockHash::Finish() {
  const std::uint64_t bits = bytes_ * 8;
  std::string padding(1 + (kBlockBytes + 55 - used_) % kBlockBytes, '\0');
  padding[0] = '\x80';
  for (int shift = 56; shift >= 0; shift -= 8) padding += static_cast<char>(bits >> shift);
  Update(padding);
  return Digits();
}

std::uint32_t BlockHash::WordOf(const unsigned char* block, int w) {
  const unsigned char* p = block + 4 * w;
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}

// Section 6.2 of FIPS 180-4: w is the message schedule, a..h are the working variables. t1 and t2
// are the standard's T1 = h + Sigma1(e) + Ch(e, f, g) + K + w and T2 = Sigma0(a) + Maj(a, b, c).
void Sha256::AddBlock(const unsigned char* block) {
  std::array<std::uint32_t, 64> w;
  for (int t = 0; t < 16; ++t) w[t] = WordOf(block, t);
  for (int t = 16; t < 64; ++t) {
    const std::uint32_t x = w[t - 15];
    const std::uint32_t y = w[t - 2];
    w[t] = w[t - 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) + w[t - 7] +
           (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                             ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
    const std::uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> sums = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += sums[i];
}

std::string Sha256::Digits() const { return HexOf(state_); }

// Section 6.1: the function and the constant of a round change every 20 rounds.
void Sha1::AddBlock(const unsigned char* block) {
  std::array<std::uint32_t, 80> w;
  for (int t = 0; t < 16; ++t) w[t] = WordOf(block, t);
  for (int t = 16; t < 80; ++t) w[t] = std::rotl(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
  auto [a, b, c, d, e] = state_;
  for (int t = 0; t < 80; ++t) {
    const std::uint32_t choice = (b & c) ^ (~b & d);
    const std::uint32_t parity = b ^ c ^ d;
    const std::uint32_t majority = (b & c) ^ (b & d) ^ (c & d);
    const std::uint32_t mix = t < 20   ? choice + 0x5a827999
                              : t < 40 ? parity + 0x6ed9eba1
                              : t < 60 ? majority + 0x8f1bbcdc
                                       : parity + 0xca62c1d6;
    const std::uint32_t next = std::rotl(a, 5) + mix + e + w[t];
    e = d;
    d = c;
    c = std::rotl(b, 30);
    b = a;
    a = next;
  }
  const std::array<std::uint32_t, 5> sums = {a, b, c, d, e};
  for (int i = 0; i < 5; ++i) state_[i] += sums[i];
}

std::string Sha1::Digits() const { return HexOf(state_); }

}  // namespace qlora

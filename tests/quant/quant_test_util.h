// Inputs and measures that the tests of the quantizer share.
#ifndef QLORA_TESTS_QUANT_QUANT_TEST_UTIL_H_
#define QLORA_TESTS_QUANT_QUANT_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "qlora/error.h"
#include "qlora/nf4.h"
#include "qlora/nf4_compat.h"

namespace qlora {

// The generator of the golden vectors: a 64-bit linear congruential one, upper 24 bits as [0, 1).
class Lcg {
 public:
  explicit Lcg(std::uint64_t seed) : state_(seed) {}
  double Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 40) / 16777216.0;
  }

 private:
  std::uint64_t state_;
};

// 64-bit FNV-1a over bytes.
inline std::uint64_t Fnv1a(std::span<const std::uint8_t> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}
template <typename T>
std::uint64_t Fnv1aOf(const std::vector<T>& values) {
  return Fnv1a({reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)});
}

inline std::string Hex(std::span<const std::uint8_t> bytes) {
  std::string out;
  for (const std::uint8_t byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

// n values of N(0, 1) times sigma.
inline std::vector<float> Normal(std::int64_t n, std::uint64_t seed, double sigma = 1) {
  std::vector<float> out(n);
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(sigma * RandomNormal(key, i));
  }
  return out;
}

// n values of U(low, high).
inline std::vector<float> Uniform(std::int64_t n, std::uint64_t seed, float low, float high) {
  std::vector<float> out(n);
  const RandomKey key = MakeKey(seed, RandomPlace::kTest);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = low + (high - low) * RandomUniform(key, i);
  }
  return out;
}

// Input 2 of the golden file: 32,768 sums of twelve uniform numbers minus 6, seed 7.
inline std::vector<float> IrwinHall() {
  Lcg random(7);
  std::vector<float> x(32768);
  for (float& value : x) {
    double sum = 0;
    for (int k = 0; k < 12; ++k) sum += random.Next();
    value = static_cast<float>(sum - 6);
  }
  return x;
}

struct ErrorStatistics {
  double rmse = 0;
  double mae = 0;
  double max = 0;
  double bias = 0;
};

inline ErrorStatistics Compare(std::span<const float> x, std::span<const float> y) {
  ErrorStatistics e;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(y[i]) - x[i];
    e.rmse += d * d;
    e.mae += std::fabs(d);
    e.bias += d;
    e.max = std::max(e.max, std::fabs(d));
  }
  const auto n = static_cast<double>(x.size());
  return {std::sqrt(e.rmse / n), e.mae / n, e.max, e.bias / n};
}

// q: a QuantizedView or a compat::View.
std::vector<std::uint8_t> PackedOf(const auto& q) {
  return {q.packed, q.packed + PackedBytes(q.size())};
}

std::vector<std::uint8_t> CodesOf(const auto& q) {
  std::vector<std::uint8_t> codes(q.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = i % 2 == 0 ? q.packed[i / 2] >> 4 : q.packed[i / 2] & 15;
  }
  return codes;
}

std::vector<float> ScalesOf(const auto& q) {
  std::vector<float> scales(q.blocks());
  LoadScales(q, 0, q.blocks(), scales.data());
  return scales;
}

std::vector<float> DecodedOf(const auto& q) {
  std::vector<float> out(q.size(), std::nanf(""));
  DequantizeRows(q, 0, MakeView(out.data(), q.rows, q.cols));
  return out;
}

inline QuantizedMatrix QuantizeRow(std::span<const float> x, const QuantizeOptions& options) {
  Context context(2);
  return Quantize(context, MakeView(x.data(), 1, std::ssize(x)), options);
}

inline compat::Matrix QuantizeRowAs(std::span<const float> x, const compat::Options& options) {
  Context context(2);
  return compat::Quantize(context, MakeView(x.data(), 1, std::ssize(x)), options);
}

// The message of the InvalidInput error that fn throws.
template <typename Fn>
std::string MessageOf(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace qlora

#endif  // QLORA_TESTS_QUANT_QUANT_TEST_UTIL_H_

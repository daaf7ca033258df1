// The rules of bitsandbytes written out once more, for any length and block size, with nothing
// shared but the codebooks.
#ifndef QLORA_TESTS_QUANT_ORACLE_H_
#define QLORA_TESTS_QUANT_ORACLE_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "qlora/nf4.h"

namespace qlora {

struct OracleBlocks {
  std::vector<std::uint8_t> codes;  // one byte per value
  std::vector<float> scales;
};

// bitsandbytes' CPU path: a sorted codebook, midpoints, searchsorted from the left.
inline OracleBlocks OracleQuantize(std::span<const float> x, std::int64_t block_size,
                                   QuantType type) {
  const std::array<float, 16>& code = type == QuantType::kNf4 ? kNf4Codebook : kFp4Codebook;
  std::vector<std::uint8_t> order;
  for (std::uint8_t k = 0; k < 16; ++k) {
    if (type == QuantType::kNf4 || k != 8) order.push_back(k);  // FP4's zero once
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return code[a] < code[b]; });

  OracleBlocks out;
  const auto n = std::ssize(x);
  for (std::int64_t begin = 0; begin < n; begin += block_size) {
    const std::int64_t end = std::min(n, begin + block_size);
    float absmax = 0;
    for (auto i = begin; i < end; ++i) absmax = std::max(absmax, std::fabs(x[i]));
    const float divisor = std::max(absmax, 1e-38f);
    const bool full = end - begin == block_size;
    out.scales.push_back(full ? absmax : divisor);
    for (auto i = begin; i < end; ++i) {
      const float scaled = full ? x[i] * (1.0f / divisor) : x[i] / divisor;
      const float clamped = std::clamp(scaled, -1.0f, 1.0f);
      std::size_t k = 0;
      while (k + 1 < order.size() && clamped > (code[order[k]] + code[order[k + 1]]) / 2) {
        ++k;
      }
      out.codes.push_back(order[k]);
    }
  }
  return out;
}

// bitsandbytes' CUDA kernels with an exact reciprocal and flush to zero.
inline std::uint8_t OracleCudaNf4(float x) {
  constexpr std::array<float, 15> kLiterals = {
      -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
      -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
      0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
      0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};
  std::uint8_t code = 0;
  for (const float literal : kLiterals) code = static_cast<std::uint8_t>(code + (x > literal));
  return code;
}
inline std::uint8_t OracleCudaFp4(float x) {
  const float magnitude = std::fabs(x);
  const int sign = x < 0 ? 8 : 0;
  int code = 0;
  if (magnitude > 0.29166667f) {
    if (magnitude > 0.583333f) {
      code = magnitude > 0.8333333f ? 3 : 2;
    } else {
      code = magnitude > 0.4166667f ? 5 : 4;
    }
  } else if (magnitude > 0.0859375f) {
    code = magnitude > 0.20833333f ? 7 : 6;
  } else {
    code = magnitude > 0.00260417f ? 1 : 0;
  }
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace qlora

#endif  // QLORA_TESTS_QUANT_ORACLE_H_

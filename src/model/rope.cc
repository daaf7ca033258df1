#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "base/check.h"

namespace qlora {
namespace {

// The (fractional) pair that turns `rotations` times over the original context length.
double YarnDim(const RopeConfig& rope, double rotations) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(rope.rotary_dim) *
         std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.rope_theta));
}

double Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

template <typename T>
void Fill(const std::vector<double>& frequencies, double factor, Memory& memory, MatrixView cos,
          MatrixView sin) {
  constexpr std::int64_t kPiece = 1024;  // positions that are uploaded at a time
  for (std::int64_t begin = 0; begin < cos.rows; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, cos.rows - begin);
    std::vector<T> cosines;
    std::vector<T> sines;
    for (std::int64_t p = begin; p < begin + count; ++p) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(p) * frequency;
        cosines.push_back(static_cast<T>(std::cos(angle) * factor));
        sines.push_back(static_cast<T>(std::sin(angle) * factor));
      }
    }
    Upload(memory, std::span<const T>(cosines), Rows(cos, begin, count));
    Upload(memory, std::span<const T>(sines), Rows(sin, begin, count));
  }
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, bool beyond_original) {
  const std::int64_t pairs = rope.rotary_dim / 2;
  double low = 0;
  double high = 0;
  if (rope.type == RopeType::kYarn) {
    low = YarnDim(rope, rope.beta_fast);
    high = YarnDim(rope, rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(rope.rotary_dim - 1));
    if (low == high) high += 0.001;
  }
  const std::vector<double>& divisors = beyond_original ? rope.long_factor : rope.short_factor;

  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(rope.rotary_dim);
    double frequency = std::pow(rope.rope_theta, -exponent);
    switch (rope.type) {
      case RopeType::kDefault:
        break;
      case RopeType::kLinear:
        frequency /= rope.factor;
        break;
      case RopeType::kLlama3:
        frequency = Llama3Frequency(rope, frequency);
        break;
      case RopeType::kLongrope:
        frequency /= divisors[i];
        break;
      case RopeType::kYarn: {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequency = frequency / rope.factor * ramp + frequency * (1 - ramp);
        break;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

void FillRopeTable(const RopeConfig& rope, bool beyond_original, Memory& memory, MatrixView cos,
                   MatrixView sin) {
  const std::vector<double> frequencies = RopeFrequencies(rope, beyond_original);
  switch (cos.dtype) {
    case DType::kF32:
      return Fill<float>(frequencies, rope.attention_factor, memory, cos, sin);
    case DType::kF64:
      return Fill<double>(frequencies, rope.attention_factor, memory, cos, sin);
    case DType::kC128:
      return Fill<std::complex<double>>(frequencies, rope.attention_factor, memory, cos, sin);
    default:
      ThrowRuntime("rope tables cannot be {}", NameOf(cos.dtype));
  }
}

}  // namespace qlora

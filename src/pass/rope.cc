#include "pass/rope.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "base/check.h"

namespace qlora {
namespace {

// The (fractional) pair i that turns r times over the original context of L positions. Pair i turns
// theta^(-2i / K_rot) radians per position, so r = L theta^(-2i / K_rot) / (2 pi), and
//
//   i = K_rot ln(L / (2 pi r)) / (2 ln theta)
double YarnDim(const RopeConfig& rope, double rotations) {
  const double length = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(rope.rotary_dim) *
         std::log(length / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.rope_theta));
}

// Pairs that turn often in the original context keep their frequency, slow ones are divided by
// `factor`, and pairs between are a mixture:
//
//   turns in L positions   below low_freq_factor   ...       above high_freq_factor
//   frequency              f / factor              mixture   f
double Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// True when a second table is needed: longrope, and sequences that can exceed the original length.
bool HasLongTable(const RopeConfig& rope, std::int64_t max_positions) {
  return rope.type == RopeType::kLongrope && max_positions > rope.original_max_position_embeddings;
}

// Rows of the table with, for longrope, the long one after the short one.
std::int64_t TableRows(const RopeConfig& rope, std::int64_t max_positions) {
  return HasLongTable(rope, max_positions) ? 2 * max_positions : max_positions;
}

// What cos and sin of a position are multiplied by.
double FactorAt(const RopeConfig& rope, std::int64_t position) {
  if (rope.query_scale_beta == 0) return rope.attention_factor;
  const std::int64_t rounds = position / rope.original_max_position_embeddings;
  return rope.attention_factor *
         (1 + rope.query_scale_beta * std::log(1 + static_cast<double>(rounds)));
}

// cos and sin (positions, rotary_dim / 2), computed in float64 and scaled by FactorAt.
template <typename T>
void UploadRows(Memory& memory, const std::vector<double>& frequencies, const RopeConfig& rope,
                const MatrixView& cos, const MatrixView& sin) {
  constexpr std::int64_t kRows = 1024;  // at a time, to keep the host's copy small
  for (std::int64_t begin = 0; begin < cos.rows; begin += kRows) {
    const std::int64_t rows = std::min(kRows, cos.rows - begin);
    std::vector<T> cosines;
    std::vector<T> sines;
    for (std::int64_t p = begin; p < begin + rows; ++p) {
      const double factor = FactorAt(rope, p);
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(p) * frequency;
        cosines.push_back(static_cast<T>(std::cos(angle) * factor));
        sines.push_back(static_cast<T>(std::sin(angle) * factor));
      }
    }
    Upload<T>(memory, cosines, Rows(cos, begin, rows));
    Upload<T>(memory, sines, Rows(sin, begin, rows));
  }
}

// Fills one table (positions, rotary_dim / 2) in the wide type of the backend.
void UploadTable(Memory& memory, const RopeConfig& rope, bool beyond_original,
                 const MatrixView& cos, const MatrixView& sin) {
  const std::vector<double> frequencies = RopeFrequencies(rope, beyond_original);
  switch (cos.dtype) {
    case DType::kF32:
      return UploadRows<float>(memory, frequencies, rope, cos, sin);
    case DType::kF64:
      return UploadRows<double>(memory, frequencies, rope, cos, sin);
    case DType::kC128:
      return UploadRows<std::complex<double>>(memory, frequencies, rope, cos, sin);
    default:
      ThrowRuntime("rope tables cannot be {}", NameOf(cos.dtype));
  }
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, bool beyond_original) {
  const std::int64_t pairs = rope.rotary_dim / 2;
  // yarn: pairs below `low` turn often and keep their frequency, pairs above `high` are divided by
  // the factor, with a linear ramp between. beta_fast and beta_slow are turns.
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
    // The ramp divides by high - low.
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
    if (!rope.divisors.empty()) frequency /= rope.divisors[i];
    frequencies.push_back(frequency);
  }
  return frequencies;
}

RopeTables::RopeTables(Memory& memory, const DecoderConfig& config, DType wide,
                       std::int64_t max_positions)
    : ropes_(config.ropes),
      max_positions_(max_positions),
      arena_(Bytes(config, wide, max_positions), memory) {
  Carver carver(arena_);
  for (const RopeConfig& rope : ropes_) {
    const MatrixView cos = carver.Matrix(wide, TableRows(rope, max_positions), rope.rotary_dim / 2);
    const MatrixView sin = carver.Matrix(wide, cos.rows, cos.cols);
    // One round, or two for longrope: both tables begin at position 0.
    for (std::int64_t first = 0; cos.cols > 0 && first < cos.rows; first += max_positions) {
      UploadTable(memory, rope, first > 0, Rows(cos, first, max_positions),
                  Rows(sin, first, max_positions));
    }
    tables_.push_back({cos, sin, rope.interleaved});
  }
}

std::size_t RopeTables::Bytes(const DecoderConfig& config, DType wide, std::int64_t max_positions) {
  Carver plan;
  for (const RopeConfig& rope : config.ropes) {
    for (int table = 0; table < 2; ++table) {
      plan.Matrix(wide, TableRows(rope, max_positions), rope.rotary_dim / 2);
    }
  }
  return plan.bytes();
}

bool RopeTables::HaveSameTables(std::int64_t a, std::int64_t b) const {
  for (std::int64_t rope = 0; a > 0 && rope < std::ssize(ropes_); ++rope) {
    if (FirstRow(rope, a) != FirstRow(rope, b)) return false;
  }
  return true;
}

std::int32_t RopeTables::FirstRow(std::int64_t rope, std::int64_t length) const {
  if (length > max_positions_) {
    ThrowRuntime("[decoder] position {} exceeds the {} that were planned", length - 1,
                 max_positions_);
  }
  const bool above = HasLongTable(ropes_[rope], max_positions_) &&
                     length > ropes_[rope].original_max_position_embeddings;
  return static_cast<std::int32_t>(above ? max_positions_ : 0);
}

}  // namespace qlora

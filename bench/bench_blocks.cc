#include "bench/bench_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "base/random.h"
#include "ggml/block_format.h"
#include "ggml/decode.h"
#include "ggml/encode.h"

namespace qlora::bench {
namespace {

constexpr std::int64_t kRows = 256;
constexpr std::int64_t kCols = 4096;

// Relative errors of ggml's own quantizers without an importance matrix.
struct GgmlError {
  BlockFormat format;
  double normal;
  double student;
};
constexpr GgmlError kGgml[] = {
    {BlockFormat::kQ8_0, 0.0053, 0.0073},   {BlockFormat::kQ6_K, 0.0177, 0.0229},
    {BlockFormat::kQ5_K, 0.0361, 0.0439},   {BlockFormat::kQ5_1, 0.0378, 0.0453},
    {BlockFormat::kQ5_0, 0.0427, 0.0580},   {BlockFormat::kQ4_K, 0.0713, 0.0867},
    {BlockFormat::kIQ4_NL, 0.0762, 0.0932}, {BlockFormat::kIQ4_XS, 0.0768, 0.0942},
    {BlockFormat::kQ4_1, 0.0781, 0.0938},   {BlockFormat::kQ4_0, 0.0858, 0.1154},
    {BlockFormat::kMXFP4, 0.1141, 0.1310},  {BlockFormat::kQ3_K, 0.1508, 0.1834},
    {BlockFormat::kQ2_K, 0.2960, 0.3429}};

std::vector<float> RandomWeights(Context& context, bool student) {
  const RandomKey normal = MakeKey(0, RandomPlace::kTest);
  const RandomKey uniform = MakeKey(1, RandomPlace::kTest);
  std::vector<float> values(kRows * kCols);
  context.ParallelFor(kRows, [&](std::int64_t r, int) {
    for (std::int64_t i = r * kCols; i < (r + 1) * kCols; ++i) {
      double value = RandomNormal(normal, i);
      if (student) {
        // A chi square of 4 degrees of freedom is -2 ln(u v).
        const double u = 1 - double{RandomUniform(uniform, 2 * i)};
        const double v = 1 - double{RandomUniform(uniform, 2 * i + 1)};
        value /= std::sqrt(-2 * std::log(u * v) / 4);
      }
      values[i] = static_cast<float>(0.02 * value);
    }
  });
  return values;
}

// Encodes all rows. Returns the relative root mean square error; seconds: of encoding.
double Round(Context& context, Clock clock, BlockFormat format, const std::vector<float>& values,
             double& seconds) {
  const BlockFormatInfo& info = InfoOf(format);
  const std::int64_t row_blocks = kCols / info.values;
  const std::int64_t row_bytes = row_blocks * info.bytes;
  std::vector<std::byte> blocks(kRows * row_bytes);
  std::vector<std::int64_t> bad(kRows);
  const Timer watch(clock);
  context.ParallelFor(kRows, [&](std::int64_t r, int) {
    bad[r] = EncodeBlocks(format, values.data() + r * kCols, row_blocks, nullptr,
                          blocks.data() + r * row_bytes);
  });
  seconds = watch.seconds();
  QLORA_DCHECK(std::ranges::max(bad) < 0);  // every value is finite
  std::vector<float> stored(values.size());
  DecodeBlocks(format, blocks.data(), kRows * row_blocks, stored.data());
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double rest = double{values[i]} - double{stored[i]};
    error += rest * rest;
    size += double{values[i]} * double{values[i]};
  }
  return std::sqrt(error / size);
}

}  // namespace

std::vector<BenchRow> BenchBlocks(Context& context, Clock clock) {
  RowList rows(fmt::format("{}x{}", kRows, kCols), DType::kF32, context.threads());
  for (const bool student : {false, true}) {
    const std::vector<float> values = RandomWeights(context, student);
    for (const GgmlError& ggml : kGgml) {
      double seconds = 0;
      const double error = Round(context, clock, ggml.format, values, seconds);
      rows.Add(fmt::format("{} {}", student ? "t" : "normal", InfoOf(ggml.format).name), seconds,
               error, "rel. rms", student ? ggml.student : ggml.normal, "error of llama.cpp");
    }
  }
  return rows.Take();
}

}  // namespace qlora::bench

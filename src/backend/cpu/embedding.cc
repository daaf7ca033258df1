// The rows of the embedding table for token ids, and the noise that NEFTune adds to them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/embedding.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void Embed(std::span<const std::int32_t> ids, const ConstMatrixView& table, float scale,
           const MatrixView& y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    ScaleRow(ConstRow(table, ids[n]), scale, false, Row(y, n), y.cols);
  }
}

// One lane at a time, because the generator of the noise is scalar.
void AddNoise(RandomKey key, const ConstMatrixView& magnitude, const MatrixView& y,
              std::int64_t begin, std::int64_t end) {
  const hn::CappedTag<float, 1> d;
  for (std::int64_t n = begin; n < end; ++n) {
    const float m = magnitude.Row<float>(0)[n];
    const Row out(y, n);
    for (std::int64_t i = 0; i < y.cols; ++i) {
      const float u = RandomUniform(key, n * y.cols + i);
      out.Store(d, hn::Add(out.Load(d, i), hn::Set(d, m * (2 * u - 1))), i);
    }
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Embed);
void EmbedRows(std::span<const std::int32_t> ids, const ConstMatrixView& table, float scale,
               const MatrixView& y, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Embed)(ids, table, scale, y, begin, end);
}

HWY_EXPORT(AddNoise);
void AddNoiseRows(RandomKey key, const ConstMatrixView& magnitude, const MatrixView& y,
                  std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(AddNoise)(key, magnitude, y, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

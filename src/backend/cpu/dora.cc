// Ops on the rows of weights and the columns of activations, which DoRA needs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dora.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// A row of W + scale B A is formed in `values`, then measured: |row| = sqrt(sum of squares).
void RowNorms(const WeightView& weight, const LoraView& lora, const MatrixView& norm,
              const MatrixView& inverse, float* values, std::int64_t begin, std::int64_t end) {
  const std::int64_t I = weight.cols();
  for (std::int64_t o = begin; o < end; ++o) {
    if (weight.is_dense()) {
      const ConstRow row(weight.dense, o);
      ForEachVector(
          I, [&](auto d, std::int64_t i) HWY_ATTR { hn::StoreU(row.Load(d, i), d, values + i); });
    } else {
      DequantizeRows(weight.quantized, o, MakeView(values, 1, weight.cols()));
    }
    for (std::int64_t r = 0; r < lora.a.rows; ++r) {
      const float factor = lora.scale * lora.b.Row<float>(o)[r];
      const float* a = lora.a.Row<float>(r);
      ForEachVector(I, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto sum =
            hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, a + i), hn::LoadU(d, values + i));
        hn::StoreU(sum, d, values + i);
      });
    }
    Sum sum;
    ForEachVector(I, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto value = hn::LoadU(d, values + i);
      sum.MulAdd(d, value, value);
    });
    const float length = std::sqrt(sum.Total());
    if (!norm.empty()) norm.Row<float>(0)[o] = length;
    inverse.Row<float>(0)[o] = length > 0 ? 1 / length : 0;
  }
}

void ScaleColumns(const ConstMatrixView& x, const ConstMatrixView& gain,
                  const ConstMatrixView& bias, const MatrixView& y, Store store, std::int64_t begin,
                  std::int64_t end) {
  const ConstRow g(gain, 0);
  const ConstRow b(bias, 0);
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow in(x, n);
    const Row out(y, n);
    ForEachVector(x.cols, [&](auto d, std::int64_t o) HWY_ATTR {
      auto value = hn::Mul(in.Load(d, o), g.Load(d, o));
      if (!bias.empty()) value = hn::Add(value, b.Load(d, o));
      if (store == Store::kAdd) value = hn::Add(value, out.Load(d, o));
      out.Store(d, value, o);
    });
  }
}

// Row by row, because columns are far apart in memory; the sums stay in the cache.
void ColumnDots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
                std::int64_t begin, std::int64_t end) {
  float* sums = out.Row<float>(0);
  std::fill(sums + begin, sums + end, 0.0f);
  for (std::int64_t n = 0; n < x.rows; ++n) {
    const ConstRow a(x, n);
    const ConstRow b(y, n);
    ForEachVector(end - begin, [&](auto d, std::int64_t i) HWY_ATTR {
      const std::int64_t o = begin + i;
      const auto sum = hn::MulAdd(a.Load(d, o), b.Load(d, o), hn::LoadU(d, sums + o));
      hn::StoreU(sum, d, sums + o);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(RowNorms);
void RowNormsRange(const WeightView& weight, const LoraView& lora, const MatrixView& norm,
                   const MatrixView& inverse, float* values, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RowNorms)(weight, lora, norm, inverse, values, begin, end);
}

HWY_EXPORT(ScaleColumns);
void ScaleColumnsRows(const ConstMatrixView& x, const ConstMatrixView& gain,
                      const ConstMatrixView& bias, const MatrixView& y, Store store,
                      std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(ScaleColumns)(x, gain, bias, y, store, begin, end);
}

HWY_EXPORT(ColumnDots);
void ColumnDotsRange(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
                     std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(ColumnDots)(x, y, out, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

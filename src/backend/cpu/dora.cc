// Ops on the rows of weights and the columns of activations, which DoRA and the statistics of
// calibration need.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dora.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// A row of W + scale B A is formed in `values`, then measured: |row| = sqrt(sum of squares).
void RowNorms(const ops::RowNorms& op, float* values, Range rows) {
  const auto& [weight, lora, norm, inverse] = op;
  const std::int64_t I = weight.cols();
  for (std::int64_t o = rows.begin; o < rows.end; ++o) {
    ReadRow(weight, o, 0, I, values);
    for (std::int64_t r = 0; r < lora.a.rows; ++r) {
      // Row o of B A is the sum over r of B(o, r) A(r, :): R passes over one row that stays in the
      // cache.
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
    // A row of zeros has no direction. With 0 in place of 1 / 0, its output is 0 and its gradients
    // are 0, where infinity times 0 would spread NaN through the model.
    inverse.Row<float>(0)[o] = length > 0 ? 1 / length : 0;
  }
}

void ScaleColumns(const ops::ScaleColumns& op, Range rows) {
  const bool has_bias = !op.bias.empty();
  const bool add = op.store == Store::kAdd;
  const ConstRow gain(op.gain, 0);
  const ConstRow bias(op.bias, 0);
  for (std::int64_t n = rows.begin; n < rows.end; ++n) {
    const ConstRow x(op.x, n);
    const Row y(op.y, n);
    ForEachVector(op.x.cols, [&](auto d, std::int64_t o) HWY_ATTR {
      auto value = hn::Mul(x.Load(d, o), gain.Load(d, o));
      if (has_bias) value = hn::Add(value, bias.Load(d, o));
      if (add) value = hn::Add(value, y.Load(d, o));
      y.Store(d, value, o);
    });
  }
}

// Row by row, because columns are far apart in memory; the sums stay in the cache.
void ColumnDots(const ops::ColumnDots& op, Range columns) {
  float* sums = op.dots.Row<float>(0);
  std::fill(sums + columns.begin, sums + columns.end, 0.0f);
  for (std::int64_t n = 0; n < op.x.rows; ++n) {
    const ConstRow x(op.x, n);
    const ConstRow y(op.y, n);
    ForEachVector(columns.end - columns.begin, [&](auto d, std::int64_t i) HWY_ATTR {
      const std::int64_t o = columns.begin + i;
      hn::StoreU(hn::MulAdd(x.Load(d, o), y.Load(d, o), hn::LoadU(d, sums + o)), d, sums + o);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(RowNorms);
void RowNormsRange(const ops::RowNorms& op, float* values, Range rows) {
  HWY_DYNAMIC_DISPATCH(RowNorms)(op, values, rows);
}

HWY_EXPORT(ScaleColumns);
void ScaleColumnsRows(const ops::ScaleColumns& op, Range rows) {
  HWY_DYNAMIC_DISPATCH(ScaleColumns)(op, rows);
}

HWY_EXPORT(ColumnDots);
void ColumnDotsColumns(const ops::ColumnDots& op, Range columns) {
  HWY_DYNAMIC_DISPATCH(ColumnDots)(op, columns);
}

void ColumnSquaresColumns(const ops::ColumnSquares& op, Range columns) {
  // float64, because sums run over all rows of all calibration batches: with float32 a sum of 2^24
  // squares of equal size would stop growing.
  double* sums = op.sums_acc.Row<double>(0);
  for (std::int64_t n = 0; n < op.x.rows; ++n) {
    for (std::int64_t i = columns.begin; i < columns.end; ++i) {
      const double value =
          op.x.dtype == DType::kBF16 ? ToFloat(op.x.Row<BFloat16>(n)[i]) : op.x.Row<float>(n)[i];
      sums[i] += value * value;
    }
  }
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

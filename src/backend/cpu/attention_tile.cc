#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_tile.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include "backend/cpu/attention_tile.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

using Vector = hn::Vec<FloatTag>;

// Columns of a row, by whole vectors; a tile has room for them.
HWY_INLINE hn::Mask<FloatTag> Visible(const ScoreTile& tile, std::size_t r, std::size_t c) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const auto column = hn::Iota(di, static_cast<std::int32_t>(c));
  const auto before = hn::Lt(column, hn::Set(di, tile.first[r]));
  const auto within = hn::Lt(column, hn::Set(di, tile.last[r]));
  return hn::RebindMask(d, hn::AndNot(before, within));
}

// cap(scale * product)
HWY_INLINE Vector Score(const ScoreTile& tile, const float* product) {
  const FloatTag d;
  const Vector score = hn::Mul(hn::Load(d, product), hn::Set(d, tile.scale));
  if (tile.softcap == 0) return score;
  const Vector cap = hn::Set(d, tile.softcap);
  return hn::Mul(cap, hn::Tanh(d, hn::Div(score, cap)));
}

}  // namespace

void Softmax(const ScoreTile& tile, const RunningSoftmax& state) {
  const FloatTag d;
  const Vector hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto cols = static_cast<std::size_t>(tile.cols);
  for (std::size_t r = 0; r < static_cast<std::size_t>(tile.rows); ++r) {
    float* row = tile.scores + r * kTile;
    Vector largest = hidden;
    for (std::size_t c = 0; c < cols; c += kLanes) {
      const Vector score = hn::IfThenElse(Visible(tile, r, c), Score(tile, row + c), hidden);
      largest = hn::Max(largest, score);
      hn::Store(score, d, row + c);
    }
    const float before = state.largest[r];
    const float after = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    if (after == -std::numeric_limits<float>::infinity()) {  // nothing visible so far
      for (std::size_t c = 0; c < cols; c += kLanes) hn::Store(hn::Zero(d), d, row + c);
      continue;
    }
    Vector sum = hn::Zero(d);
    for (std::size_t c = 0; c < cols; c += kLanes) {
      const Vector p = hn::Exp(d, hn::Sub(hn::Load(d, row + c), hn::Set(d, after)));
      sum = hn::Add(sum, p);
      hn::Store(p, d, row + c);
    }
    const float total = hn::GetLane(hn::SumOfLanes(d, sum));
    if (after == before) {
      state.sum[r] += total;
      continue;
    }
    const float factor = std::exp(before - after);
    state.largest[r] = after;
    state.sum[r] = state.sum[r] * factor + total;
    float* values = state.values + r * static_cast<std::size_t>(state.stride);
    ForEachVector(static_cast<std::size_t>(state.width), [&](auto tag, std::size_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(tag, values + i), hn::Set(tag, factor)), tag, values + i);
    });
  }
}

void Finish(std::int64_t rows, const RunningSoftmax& state, float* lse, std::int64_t lse_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    lse[r * lse_stride] = state.largest[r] + std::log(state.sum[r]);
    const float factor = 1.0f / state.sum[r];
    float* values = state.values + r * state.stride;
    ForEachVector(static_cast<std::size_t>(state.width), [&](auto d, std::size_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, factor)), d, values + i);
    });
  }
}

void SoftmaxGradient(const ScoreTile& tile, const TileStatistics& statistics, float* d_scores) {
  const FloatTag d;
  const Vector one = hn::Set(d, 1.0f);
  for (std::size_t r = 0; r < static_cast<std::size_t>(tile.rows); ++r) {
    float* row = tile.scores + r * kTile;
    float* d_row = d_scores + r * kTile;
    for (std::size_t c = 0; c < static_cast<std::size_t>(tile.cols); c += kLanes) {
      const bool by_column = statistics.by_column;
      const Vector lse =
          by_column ? hn::Load(d, statistics.lse + c) : hn::Set(d, statistics.lse[r]);
      const Vector delta =
          by_column ? hn::Load(d, statistics.delta + c) : hn::Set(d, statistics.delta[r]);
      const auto visible = Visible(tile, r, c);
      const Vector score = Score(tile, row + c);
      const Vector p = hn::IfThenElseZero(visible, hn::Exp(d, hn::Sub(score, lse)));
      Vector gradient =
          hn::Mul(hn::Mul(p, hn::Set(d, tile.scale)), hn::Sub(hn::Load(d, d_row + c), delta));
      if (tile.softcap != 0) {
        const Vector ratio = hn::Div(score, hn::Set(d, tile.softcap));
        gradient = hn::Mul(gradient, hn::NegMulAdd(ratio, ratio, one));
      }
      hn::Store(p, d, row + c);
      hn::Store(hn::IfThenElseZero(visible, gradient), d, d_row + c);
    }
  }
}

void Dots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
          std::int64_t begin, std::int64_t end) {
  const std::int64_t K = y.cols / out.cols;
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow a(x, n);
    const ConstRow b(y, n);
    for (std::int64_t h = 0; h < out.cols; ++h) {
      const auto first = static_cast<std::size_t>(h * K);
      Sum sum;
      ForEachVector(static_cast<std::size_t>(K), [&](auto d, std::size_t i) HWY_ATTR {
        sum.MulAdd(d, a.Load(d, first + i), b.Load(d, first + i));
      });
      out.Row<float>(n)[h] = sum.Total();
    }
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Softmax);
void SoftmaxTile(const ScoreTile& tile, const RunningSoftmax& state) {
  HWY_DYNAMIC_DISPATCH(Softmax)(tile, state);
}

HWY_EXPORT(Finish);
void FinishSoftmax(std::int64_t rows, const RunningSoftmax& state, float* lse,
                   std::int64_t lse_stride) {
  HWY_DYNAMIC_DISPATCH(Finish)(rows, state, lse, lse_stride);
}

HWY_EXPORT(SoftmaxGradient);
void SoftmaxGradientTile(const ScoreTile& tile, const TileStatistics& statistics, float* d_scores) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradient)(tile, statistics, d_scores);
}

HWY_EXPORT(Dots);
void RowDots(const ConstMatrixView& x, const ConstMatrixView& y, const MatrixView& out,
             std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Dots)(x, y, out, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

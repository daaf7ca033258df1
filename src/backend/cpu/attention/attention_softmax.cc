// The softmax of a row in one walk over its tiles. The largest score of a row is known only at the
// end, so the sums so far are relative to the largest score so far and are rescaled when it grows:
//
//   tile        scores     largest m   factor exp(m - m')   sum
//   0           1  3       3           -                    e^-2 + 1
//   1           2  5       5           e^-2                 (e^-2 + 1) e^-2 + e^-3 + 1
//
// The backward pass has lse = m + log(sum) of the whole row, so that p = exp(score - lse) needs no
// sums: tiles are then independent.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_softmax.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include <limits>

#include "backend/cpu/attention/attention_softmax.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

using Vector = hn::Vec<FloatTag>;

// e^x for x <= 88 with a relative error of 2e-7 * max(1, |x| / 5), without FMA of 5e-7 of that;
// below -87, about 1e-38; NaN remains. Half the operations of hn::Exp. 2^f for f in [-1/2, 1/2] is
// a minimax polynomial with float coefficients (2e-8).
HWY_INLINE Vector QuickExp(Vector x) {
  const FloatTag d;
  const Vector log2e = hn::Set(d, 1.44269504f);
  const Vector least = hn::Set(d, -87.0f);
  const Vector bounded = hn::IfThenElse(hn::Lt(x, least), least, x);
  const auto n = hn::NearestInt(hn::Mul(bounded, log2e));
  const Vector f = hn::MulSub(bounded, log2e, hn::ConvertTo(d, n));
  Vector power = hn::Set(d, 1.5353362e-4f);
  for (const float c : {1.3398875e-3f, 9.6184369e-3f, 5.5503324e-2f, 0.24022648f, 0.69314718f}) {
    power = hn::MulAdd(power, f, hn::Set(d, c));
  }
  power = hn::MulAdd(power, f, hn::Set(d, 1.0f));
  return hn::BitCast(
      d, hn::Add(hn::BitCast(hn::RebindToSigned<FloatTag>(), power), hn::ShiftLeft<23>(n)));
}

// True when a row sees all columns, as most do.
inline bool SeesAll(const ScoreTile& tile, std::int64_t r) {
  return tile.first[r] == 0 && tile.last[r] >= tile.cols && tile.cols % kLanes == 0;
}

// The visible columns of a vector from c on. Vectors are always whole, because a tile has room for
// them.
HWY_INLINE hn::Mask<FloatTag> Visible(const ScoreTile& tile, std::int64_t r, std::int64_t c) {
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

// m' = max(m, scores), p = exp(score - m'); the sums so far, which are relative to m, are
// multiplied by exp(m - m').
void Softmax(const ScoreTile& tile, const RunningSoftmax& state) {
  const FloatTag d;
  const Vector hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.scores + r * kTile;
    const bool all = SeesAll(tile, r);
    Vector largest = hidden;
    for (std::int64_t c = 0; c < tile.cols; c += kLanes) {
      Vector score = Score(tile, row + c);
      if (!all) score = hn::IfThenElse(Visible(tile, r, c), score, hidden);
      largest = hn::Max(largest, score);
      hn::Store(score, d, row + c);
    }
    const float before = state.largest[r];
    const float after = std::max(before, hn::GetLane(hn::MaxOfLanes(d, largest)));
    if (after == -std::numeric_limits<float>::infinity()) {  // nothing visible so far
      for (std::int64_t c = 0; c < tile.cols; c += kLanes) hn::Store(hn::Zero(d), d, row + c);
      continue;
    }
    Vector sum = hn::Zero(d);
    for (std::int64_t c = 0; c < tile.cols; c += kLanes) {
      Vector p = QuickExp(hn::Sub(hn::Load(d, row + c), hn::Set(d, after)));
      if (!all) p = hn::IfThenElseZero(Visible(tile, r, c), p);
      sum = hn::Add(sum, p);
      hn::Store(p, d, row + c);
    }
    const float total = hn::GetLane(hn::SumOfLanes(d, sum));
    // Most tiles of a row leave its largest score unchanged, and then nothing is rescaled.
    if (after == before) {
      state.sum[r] += total;
      continue;
    }
    const float factor = std::exp(before - after);
    state.largest[r] = after;
    state.sum[r] = state.sum[r] * factor + total;
    float* values = state.values + r * state.stride;
    ForEachVector(state.width, [&](auto tag, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(tag, values + i), hn::Set(tag, factor)), tag, values + i);
    });
  }
}

// o = values / sum; lse = m + log(sum), so that exp(score - lse) is the probability.
void Finish(std::int64_t rows, const RunningSoftmax& state, float* lse, std::int64_t lse_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    lse[r * lse_stride] = state.largest[r] + std::log(state.sum[r]);
    const float factor = 1.0f / state.sum[r];
    float* values = state.values + r * state.stride;
    ForEachVector(state.width, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, factor)), d, values + i);
    });
  }
}

// d(score) = scale p (dp - delta) cap', where cap' = 1 - (score / softcap)^2
void SoftmaxGradient(const ScoreTile& tile, const float* lse, const float* delta, float* d_scores) {
  const FloatTag d;
  const Vector one = hn::Set(d, 1.0f);
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.scores + r * kTile;
    float* d_row = d_scores + r * kTile;
    const Vector lse_r = hn::Set(d, lse[r]);
    const Vector delta_r = hn::Set(d, delta[r]);
    const bool all = SeesAll(tile, r);
    for (std::int64_t c = 0; c < tile.cols; c += kLanes) {
      const Vector score = Score(tile, row + c);
      Vector p = QuickExp(hn::Sub(score, lse_r));
      Vector gradient =
          hn::Mul(hn::Mul(p, hn::Set(d, tile.scale)), hn::Sub(hn::Load(d, d_row + c), delta_r));
      if (tile.softcap != 0) {
        const Vector ratio = hn::Div(score, hn::Set(d, tile.softcap));
        gradient = hn::Mul(gradient, hn::NegMulAdd(ratio, ratio, one));
      }
      if (!all) {
        const auto visible = Visible(tile, r, c);
        p = hn::IfThenElseZero(visible, p);
        gradient = hn::IfThenElseZero(visible, gradient);
      }
      hn::Store(p, d, row + c);
      hn::Store(gradient, d, d_row + c);
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
void SoftmaxGradientTile(const ScoreTile& tile, const float* lse, const float* delta,
                         float* d_scores) {
  HWY_DYNAMIC_DISPATCH(SoftmaxGradient)(tile, lse, delta, d_scores);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

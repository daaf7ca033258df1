// Rows of the gated delta rule that the forward pass computes; contract: delta_rows.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/delta/delta_rows.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>

#include "backend/cpu/delta/delta_rows.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/views.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// Column h of the rows of a gate; zeros behind them.
void ReadColumn(const ConstMatrixView& m, const GateInputs& in, float* out) {
  for (std::int64_t r = 0; r < in.rows; ++r) {
    out[r] = m.dtype == DType::kF32 ? m.Row<float>(in.row + r)[in.h]
                                    : ToFloat(m.Row<BFloat16>(in.row + r)[in.h]);
  }
  std::fill(out + in.rows, out + kDeltaChunk, 0.0f);
}

// out[i] = e^(x[i])
void ExpAll(const float* x, float* out) {
  const FloatTag d;
  for (std::int64_t i = 0; i < kDeltaChunk; i += kLanes) {
    hn::StoreU(hn::Exp(d, hn::LoadU(d, x + i)), d, out + i);
  }
}

}  // namespace

// g = rate softplus(x), x = a + dt_bias; softplus(x) = max(x, 0) + log(1 + e^-|x|), its slope is
// sigmoid(x). Sums of g reach hundreds, and differences of neighbours are what counts: in float64.
void Gates(const GateInputs& in, DeltaGates& gates) {
  const FloatTag d;
  float a[kDeltaChunk], b[kDeltaChunk];
  ReadColumn(in.a, in, a);
  ReadColumn(in.b, in, b);
  const auto one = hn::Set(d, 1.0f);
  const auto rate = hn::Set(d, in.rate.Row<float>(0)[in.h]);
  const auto bias = hn::Set(d, in.dt_bias.Row<float>(0)[in.h]);
  float g[kDeltaChunk];
  for (std::int64_t i = 0; i < kDeltaChunk; i += kLanes) {
    // sigmoid(y) and 1 - sigmoid(y) without cancellation: with e = e^-|y|, 1 / (1 + e) and
    // e / (1 + e) are these two for y > 0, and the other way round for y < 0.
    const auto y = hn::LoadU(d, b + i);
    const auto e = hn::Exp(d, hn::Neg(hn::Abs(y)));
    const auto large = hn::Div(one, hn::Add(one, e));
    const auto small = hn::Mul(e, large);
    hn::StoreU(hn::IfThenElse(hn::Gt(y, hn::Zero(d)), large, small), d, gates.beta + i);
    hn::StoreU(hn::Mul(large, small), d, gates.beta_slope + i);
    const auto x = hn::Add(hn::LoadU(d, a + i), bias);
    const auto f = hn::Exp(d, hn::Neg(hn::Abs(x)));
    const auto softplus = hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, f));
    const auto sigma = hn::Div(hn::IfThenElse(hn::Gt(x, hn::Zero(d)), one, f), hn::Add(one, f));
    hn::StoreU(hn::Mul(rate, softplus), d, g + i);
    hn::StoreU(hn::Mul(rate, sigma), d, gates.own_slope + i);
  }
  double sum = 0;
  for (std::int64_t i = 0; i < in.rows; ++i) gates.sum[i] = sum += g[i];
  ExpAll(g, gates.own);
  float exponent[kDeltaChunk] = {};
  for (std::int64_t i = 0; i < in.rows; ++i) exponent[i] = static_cast<float>(gates.sum[i]);
  ExpAll(exponent, gates.from_start);
  for (std::int64_t i = 0; i < in.rows; ++i) exponent[i] = static_cast<float>(sum - gates.sum[i]);
  ExpAll(exponent, gates.to_end);
  gates.whole = gates.from_start[in.rows - 1];
}

void NormRows(const ConstMatrixView& x, float scale, float* out, std::int64_t stride, float* rstd) {
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const ConstRow in(x, r);
    Sum sum;
    ForEachVector(x.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto value = in.Load(d, i);
      sum.MulAdd(d, value, value);
    });
    rstd[r] = 1.0f / std::sqrt(sum.Total() + static_cast<float>(kDeltaRuleEpsilon));
    const float factor = scale * rstd[r];
    ForEachVector(x.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Mul(in.Load(d, i), hn::Set(d, factor)), d, out + r * stride + i);
    });
  }
}

void ScaledRows(const float* in, std::int64_t in_stride, const float* factor, std::int64_t rows,
                std::int64_t cols, float* out, std::int64_t out_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    ForEachVector(cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto value = hn::LoadU(d, in + r * in_stride + i);
      hn::StoreU(hn::Mul(value, hn::Set(d, factor[r])), d, out + r * out_stride + i);
    });
  }
}

void Pairs(const DeltaGates& gates, std::int64_t rows, const PairMatrices& m) {
  const FloatTag d;
  for (std::int64_t i = 0; i < rows; ++i) {
    // The difference first: e^G alone is 0 where it is below -104, and e^-G then infinite.
    float exponent[kDeltaChunk] = {};
    for (std::int64_t j = 0; j < i; ++j) {
      exponent[j] = static_cast<float>(gates.sum[i] - gates.sum[j]);
    }
    const auto beta = hn::Set(d, -gates.beta[i]);
    for (std::int64_t j = 0; j < kDeltaChunk; j += kLanes) {
      const hn::RebindToSigned<FloatTag> di;
      const auto column = hn::Iota(di, static_cast<std::int32_t>(j));
      const auto row = hn::Set(di, static_cast<std::int32_t>(i));
      const auto before = hn::RebindMask(d, hn::Lt(column, row));
      const auto upto = hn::RebindMask(d, hn::Not(hn::Lt(row, column)));
      const auto decay = hn::IfThenElseZero(upto, hn::Exp(d, hn::LoadU(d, exponent + j)));
      const std::int64_t at = i * kPairStride + j;
      hn::StoreU(decay, d, m.decay + at);
      const auto solve = hn::Mul(hn::Mul(beta, hn::LoadU(d, m.kk + at)), decay);
      hn::StoreU(hn::IfThenElseZero(before, solve), d, m.negated + at);
      if (m.qk == nullptr) continue;
      const auto attend = hn::Mul(hn::LoadU(d, m.qk + at), decay);
      hn::StoreU(hn::IfThenElseZero(upto, attend), d, m.attend + at);
    }
  }
}

void RightSideRows(const ConstMatrixView& v, const DeltaGates& gates, const float* m,
                   std::int64_t stride, const Panels& z) {
  z.ForEachPart([&](const Panels::Part& part) HWY_ATTR {
    for (std::int64_t r = 0; r < z.rows; ++r) {
      const ConstRow in(v, r);
      const float* read = m + r * stride + part.lane;
      float* out = part.Row(r);
      ForEachVector(part.lanes, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto decayed = hn::Mul(hn::Set(d, gates.from_start[r]), hn::LoadU(d, read + i));
        const auto error = hn::Sub(in.Load(d, part.lane + i), decayed);
        hn::StoreU(hn::Mul(hn::Set(d, gates.beta[r]), error), d, out + i);
      });
      std::fill(out + part.lanes, out + part.width, 0.0f);
    }
  });
}

// x(r) += the sum of m(r, j) x(j) over rows j of a block that are already solved: those before r,
// or those behind it.
void SolveBlock(const float* m, std::int64_t first, std::int64_t rows, bool backward,
                const Panels::Part& x) {
  const FloatTag d;
  const hn::CappedTag<float, 4> d4;
  const auto column = [&](auto tag, std::int64_t lane) HWY_ATTR {
    for (std::int64_t step = 1; step < rows; ++step) {
      const std::int64_t r = backward ? rows - 1 - step : step;
      const float* coefficient = m + (first + r) * kPairStride + first;
      auto sum = hn::LoadU(tag, x.Row(first + r) + lane);
      const std::int64_t begin = backward ? r + 1 : 0;
      const std::int64_t end = backward ? rows : r;
      for (std::int64_t j = begin; j < end; ++j) {
        const auto factor = hn::Set(tag, coefficient[j]);
        sum = hn::MulAdd(factor, hn::LoadU(tag, x.Row(first + j) + lane), sum);
      }
      hn::StoreU(sum, tag, x.Row(first + r) + lane);
    }
  };
  std::int64_t lane = 0;
  for (; lane + kLanes <= x.width; lane += kLanes) column(d, lane);
  for (; lane < x.width; lane += hn::MaxLanes(d4)) column(d4, lane);
}

// The strip of a vector of state columns is read twice: for P^T k, then for the new state and o.
void Tokens(const ops::GatedDeltaRule& op, const SequenceSpan& span, std::int64_t h,
            const MatrixView& state, float* keys) {
  const std::int64_t K = op.shape.key_dim;
  const std::int64_t V = op.shape.value_dim;
  const std::int64_t key = op.shape.key_head(h) * K;
  const float scale = 1 / std::sqrt(static_cast<float>(K));
  float* k = keys;
  float* q = keys + K;
  DeltaGates gates;
  Gates({op.a, op.b, op.rate, op.dt_bias, span.begin, span.rows, h}, gates);
  for (std::int64_t t = 0; t < span.rows; ++t) {
    const std::int64_t n = span.begin + t;
    float rstd;
    NormRows(Block(op.k, n, 1, key, K), 1, k, K, &rstd);
    NormRows(Block(op.q, n, 1, key, K), scale, q, K, &rstd);
    const ConstRow v(op.v, n);
    const Row o(op.o, n);
    ForEachVector(V, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto decay = hn::Set(d, gates.own[t]);
      // Chains of sums, so that one need not wait for another.
      constexpr std::int64_t kChains = 4;
      hn::Vec<decltype(d)> sum[kChains] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      const auto total = [&]() HWY_ATTR {
        return hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
      };
      const auto each = [&](const auto& step) HWY_ATTR {
        std::int64_t i = 0;
        for (; i + kChains <= K; i += kChains) {
          for (std::int64_t j = 0; j < kChains; ++j) sum[j] = step(i + j, sum[j]);
        }
        for (; i < K; ++i) sum[0] = step(i, sum[0]);
      };
      each([&](std::int64_t i, auto s) HWY_ATTR {
        return hn::MulAdd(hn::Set(d, k[i]), hn::LoadU(d, state.Row<float>(i) + c), s);
      });
      const auto error = hn::NegMulAdd(decay, total(), v.Load(d, h * V + c));
      const auto u = hn::Mul(hn::Set(d, gates.beta[t]), error);
      for (auto& chain : sum) chain = hn::Zero(d);
      each([&](std::int64_t i, auto s) HWY_ATTR {
        float* row = state.Row<float>(i) + c;
        const auto next = hn::MulAdd(hn::Set(d, k[i]), u, hn::Mul(decay, hn::LoadU(d, row)));
        hn::StoreU(next, d, row);
        return hn::MulAdd(hn::Set(d, q[i]), next, s);
      });
      o.Store(d, total(), h * V + c);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Gates);
void ComputeGates(const GateInputs& in, DeltaGates& gates) {
  HWY_DYNAMIC_DISPATCH(Gates)(in, gates);
}

HWY_EXPORT(NormRows);
void NormHeads(const ConstMatrixView& x, float scale, float* out, std::int64_t stride,
               float* rstd) {
  HWY_DYNAMIC_DISPATCH(NormRows)(x, scale, out, stride, rstd);
}

HWY_EXPORT(ScaledRows);
void ScaleRowsInto(const float* in, std::int64_t in_stride, const float* factor, std::int64_t rows,
                   std::int64_t cols, float* out, std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(ScaledRows)(in, in_stride, factor, rows, cols, out, out_stride);
}
void ScaleInto(const float* in, float factor, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaledRows)(in, count, &factor, 1, count, out, count);
}

HWY_EXPORT(Pairs);
void DecayPairs(const DeltaGates& gates, std::int64_t rows, const PairMatrices& m) {
  HWY_DYNAMIC_DISPATCH(Pairs)(gates, rows, m);
}

HWY_EXPORT(RightSideRows);
void RightSide(const ConstMatrixView& v, const DeltaGates& gates, const float* m,
               std::int64_t stride, const Panels& z) {
  HWY_DYNAMIC_DISPATCH(RightSideRows)(v, gates, m, stride, z);
}

namespace {
// Rows of a triangular block that are solved one by one; all others are products.
constexpr std::int64_t kSolveRows = 16;
}  // namespace

// Both systems: z(block) += m(block, solved rows) z(solved rows), then the block itself.
HWY_EXPORT(SolveBlock);
void SolveLower(const Kernels& kernels, const float* negated, const Panels& z_inout) {
  z_inout.ForEachPart([&](const Panels::Part& z) {
    for (std::int64_t first = 0; first < z_inout.rows; first += kSolveRows) {
      const std::int64_t rows = std::min(kSolveRows, z_inout.rows - first);
      if (first > 0) {
        kernels.multiply({.rows = rows,
                          .k = first,
                          .width = z.width,
                          .a = negated + first * kPairStride,
                          .a_stride = kPairStride,
                          .panel = z.data,
                          .c = z.Row(first),
                          .c_stride = z.width,
                          .add = true});
      }
      HWY_DYNAMIC_DISPATCH(SolveBlock)(negated, first, rows, false, z);
    }
  });
}
void SolveUpper(const Kernels& kernels, const float* negated_transposed, const Panels& z_inout) {
  const std::int64_t last = (z_inout.rows - 1) / kSolveRows * kSolveRows;
  z_inout.ForEachPart([&](const Panels::Part& z) {
    for (std::int64_t first = last; first >= 0; first -= kSolveRows) {
      const std::int64_t rows = std::min(kSolveRows, z_inout.rows - first);
      const std::int64_t solved = first + rows;
      if (solved < z_inout.rows) {
        kernels.multiply({.rows = rows,
                          .k = z_inout.rows - solved,
                          .width = z.width,
                          .a = negated_transposed + first * kPairStride + solved,
                          .a_stride = kPairStride,
                          .panel = z.Row(solved),
                          .c = z.Row(first),
                          .c_stride = z.width,
                          .add = true});
      }
      HWY_DYNAMIC_DISPATCH(SolveBlock)(negated_transposed, first, rows, true, z);
    }
  });
}

HWY_EXPORT(Tokens);
void DeltaTokens(const ops::GatedDeltaRule& op, const SequenceSpan& span, std::int64_t h,
                 const MatrixView& state, float* keys) {
  HWY_DYNAMIC_DISPATCH(Tokens)(op, span, h, state, keys);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

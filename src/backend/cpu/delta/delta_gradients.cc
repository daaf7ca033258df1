// Rows of the gradient of the gated delta rule; contract: delta_rows.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/delta/delta_gradients.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>

#include "backend/cpu/delta/delta_rows.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void NormRowsBackward(const float* dy, std::int64_t stride, const ConstMatrixView& x,
                      const float* rstd, float scale, const MatrixView& dx) {
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const ConstRow in(x, r);
    const Row out(dx, r);
    const float* gradient = dy + r * stride;
    Sum sum;
    ForEachVector(x.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      sum.MulAdd(d, hn::LoadU(d, gradient + i), in.Load(d, i));
    });
    const float factor = scale * rstd[r];
    const float projection = factor * rstd[r] * rstd[r] * sum.Total();
    ForEachVector(x.cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::Set(d, factor), hn::LoadU(d, gradient + i));
      out.Store(d, hn::NegMulAdd(in.Load(d, i), hn::Set(d, projection), scaled), i);
    });
  }
}

// G_i - G_j is the exponent of D(i, j): E = dB B + dA A is the gradient of G_i, and -E that of G_j.
void PairsBackward(const DeltaGates& gates, std::int64_t rows, const PairMatrices& m,
                   float* d_attend, float* d_solve, RowGradients& out) {
  const FloatTag d;
  HWY_ALIGN float columns[kDeltaChunk] = {};
  for (std::int64_t i = 0; i < rows; ++i) {
    Sum row;
    Sum d_beta;
    for (std::int64_t j = 0; j <= i; j += kLanes) {
      const std::int64_t at = i * kPairStride + j;
      const hn::RebindToSigned<FloatTag> di;
      const auto column = hn::Iota(di, static_cast<std::int32_t>(j));
      const auto last = hn::Set(di, static_cast<std::int32_t>(i));
      const auto before = hn::RebindMask(d, hn::Lt(column, last));
      const auto upto = hn::RebindMask(d, hn::Not(hn::Lt(last, column)));
      const auto decay = hn::LoadU(d, m.decay + at);
      const auto dp = hn::IfThenElseZero(upto, hn::LoadU(d, d_attend + at));
      const auto ds = hn::IfThenElseZero(before, hn::LoadU(d, d_solve + at));
      const auto e =
          hn::MulAdd(dp, hn::LoadU(d, m.attend + at), hn::Mul(ds, hn::LoadU(d, m.negated + at)));
      row.Add(d, e);
      hn::StoreU(hn::Add(hn::LoadU(d, columns + j), e), d, columns + j);
      hn::StoreU(hn::Mul(dp, decay), d, d_attend + at);
      const auto da_decay = hn::Neg(hn::Mul(ds, decay));
      d_beta.MulAdd(d, da_decay, hn::IfThenElseZero(before, hn::LoadU(d, m.kk + at)));
      hn::StoreU(hn::Mul(hn::Set(d, gates.beta[i]), da_decay), d, d_solve + at);
    }
    // Behind the diagonal both are 0.
    const std::int64_t rest = (i / kLanes + 1) * kLanes;
    std::fill(d_attend + i * kPairStride + rest, d_attend + i * kPairStride + kDeltaChunk, 0.0f);
    std::fill(d_solve + i * kPairStride + rest, d_solve + i * kPairStride + kDeltaChunk, 0.0f);
    out.d_gate[i] += row.Total();
    out.d_beta[i] += d_beta.Total();
  }
  for (std::int64_t j = 0; j < rows; ++j) out.d_gate[j] -= columns[j];
}

void AddedPairs(const float* m, const float* transposed, std::int64_t rows, float* sum) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t at = i * kPairStride;
    ForEachVector(rows, [&](auto d, std::int64_t j) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, m + at + j), hn::LoadU(d, transposed + at + j)), d,
                 sum + at + j);
    });
  }
}

// dm = -beta e^G dz and d(q S) = e^G do, whose products with m and q S are the gradients of G.
void Values(const ValueGradientInputs& in, const DeltaGates& gates, const MatrixView& dv,
            const Panels& d_reads, RowGradients& out) {
  const std::int64_t rows = in.dz.rows;
  in.dz.ForEachPart([&](const Panels::Part& dz) HWY_ATTR {
    const Panels::Part d_read = {d_reads.data + dz.lane * d_reads.rows, dz.lane, dz.lanes,
                                 dz.width};
    for (std::int64_t r = 0; r < rows; ++r) {
      const ConstRow d_o(in.d_o, r);
      const ConstRow v(in.v, r);
      const Row d_value(dv, r);
      const float* gradient = dz.Row(r);
      const float* m = in.reads + r * in.stride + dz.lane;
      const float* qs = in.reads + (rows + r) * in.stride + dz.lane;
      float* dm = d_read.Row(r);
      float* dqs = d_read.Row(rows + r);
      Sum d_gate;
      Sum d_beta;
      ForEachVector(dz.lanes, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto decay = hn::Set(d, gates.from_start[r]);
        const auto beta = hn::Set(d, gates.beta[r]);
        const auto z = hn::LoadU(d, gradient + i);
        const auto read = hn::LoadU(d, m + i);
        const auto scaled = hn::Mul(beta, z);
        d_value.Store(d, scaled, dz.lane + i);
        d_beta.MulAdd(d, z, hn::NegMulAdd(decay, read, v.Load(d, dz.lane + i)));
        const auto to_m = hn::Neg(hn::Mul(decay, scaled));
        const auto to_qs = hn::Mul(decay, d_o.Load(d, dz.lane + i));
        hn::StoreU(to_m, d, dm + i);
        hn::StoreU(to_qs, d, dqs + i);
        d_gate.MulAdd(d, to_m, read);
        d_gate.MulAdd(d, to_qs, hn::LoadU(d, qs + i));
      });
      std::fill(dm + dz.lanes, dm + dz.width, 0.0f);
      std::fill(dqs + dz.lanes, dqs + dz.width, 0.0f);
      out.d_gate[r] += d_gate.Total();
      out.d_beta[r] += d_beta.Total();
    }
  });
}

// G_C - G is the exponent: row r gets -c, the last row the sum of all c.
float Keys(const float* k, const float* dr, std::int64_t stride, std::int64_t rows,
           std::int64_t cols, const DeltaGates& gates, float* dk, RowGradients& out) {
  float total = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    Sum sum;
    ForEachVector(cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::Set(d, gates.to_end[r]), hn::LoadU(d, dr + r * stride + i));
      float* row = dk + r * stride + i;
      hn::StoreU(hn::Add(hn::LoadU(d, row), scaled), d, row);
      sum.MulAdd(d, scaled, hn::LoadU(d, k + r * stride + i));
    });
    out.d_gate[r] -= sum.Total();
    total += sum.Total();
  }
  return total;
}

float Dot(const float* x, const float* y, std::int64_t count) {
  Sum sum;
  ForEachVector(count, [&](auto d, std::int64_t i)
                           HWY_ATTR { sum.MulAdd(d, hn::LoadU(d, x + i), hn::LoadU(d, y + i)); });
  return sum.Total();
}

void GatesBackward(const DeltaGates& gates, const RowGradients& gradients, std::int64_t rows,
                   std::int64_t row, std::int64_t h, const MatrixView& da, const MatrixView& db) {
  const hn::CappedTag<float, 1> d;
  double sum = 0;
  for (std::int64_t r = rows - 1; r >= 0; --r) {
    sum += gradients.d_gate[r];
    Row(da, row + r).Store(d, hn::Set(d, static_cast<float>(sum) * gates.own_slope[r]), h);
    Row(db, row + r).Store(d, hn::Set(d, gradients.d_beta[r] * gates.beta_slope[r]), h);
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(NormRowsBackward);
void NormHeadsBackward(const float* dy, std::int64_t stride, const ConstMatrixView& x,
                       const float* rstd, float scale, const MatrixView& dx) {
  HWY_DYNAMIC_DISPATCH(NormRowsBackward)(dy, stride, x, rstd, scale, dx);
}

HWY_EXPORT(PairsBackward);
void PairGradients(const DeltaGates& gates, std::int64_t rows, const PairMatrices& m,
                   float* d_attend, float* d_solve, RowGradients& out) {
  HWY_DYNAMIC_DISPATCH(PairsBackward)(gates, rows, m, d_attend, d_solve, out);
}

HWY_EXPORT(AddedPairs);
void AddPairs(const float* m, const float* transposed, std::int64_t rows, float* sum) {
  HWY_DYNAMIC_DISPATCH(AddedPairs)(m, transposed, rows, sum);
}

HWY_EXPORT(Values);
void ValueGradients(const ValueGradientInputs& in, const DeltaGates& gates, const MatrixView& dv,
                    const Panels& d_reads, RowGradients& out) {
  HWY_DYNAMIC_DISPATCH(Values)(in, gates, dv, d_reads, out);
}

HWY_EXPORT(Keys);
float KeyGradients(const float* k, const float* dr, std::int64_t stride, std::int64_t rows,
                   std::int64_t cols, const DeltaGates& gates, float* dk, RowGradients& out) {
  return HWY_DYNAMIC_DISPATCH(Keys)(k, dr, stride, rows, cols, gates, dk, out);
}

HWY_EXPORT(Dot);
float DotOf(const float* x, const float* y, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(Dot)(x, y, count);
}

HWY_EXPORT(GatesBackward);
void GateGradients(const DeltaGates& gates, const RowGradients& gradients, std::int64_t rows,
                   std::int64_t row, std::int64_t h, const MatrixView& da, const MatrixView& db) {
  HWY_DYNAMIC_DISPATCH(GatesBackward)(gates, gradients, rows, row, h, da, db);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

// Normalisation, rotation, activations and copies, row by row in float32 lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/rows.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <hwy/contrib/math/math-inl.h>

#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// to[i] = [to[i] +] scale * from[i]
void ScaleRow(ConstRow from, float scale, bool add, Row to, std::size_t n) {
  ForEachVector(n, [&](auto d, std::size_t i) HWY_ATTR {
    auto value = hn::Mul(hn::Set(d, scale), from.Load(d, i));
    if (add) value = hn::Add(value, to.Load(d, i));
    to.Store(d, value, i);
  });
}

}  // namespace

void Embed(std::span<const std::int32_t> ids, const ConstMatrixView& table, float scale,
           const MatrixView& y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    ScaleRow(ConstRow(table, ids[n]), scale, false, Row(y, n), static_cast<std::size_t>(y.cols));
  }
}

void Copy(const ConstMatrixView& x, std::span<const std::int32_t> from, const MatrixView& y,
          std::span<const std::int32_t> to, bool add, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const auto index = static_cast<std::size_t>(n);
    ScaleRow(ConstRow(x, from.empty() ? n : from[index]), 1, add,
             Row(y, to.empty() ? n : to[index]), static_cast<std::size_t>(x.cols));
  }
}

void Scale(const ConstMatrixView& x, const ConstMatrixView& scale, const MatrixView& y,
           std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    ScaleRow(ConstRow(x, n), scale.Row<float>(0)[n], false, Row(y, n),
             static_cast<std::size_t>(x.cols));
  }
}

void RmsNorm(const ConstMatrixView& x, const ConstMatrixView& weight, float epsilon,
             const MatrixView& y, const MatrixView& rstd, std::int64_t begin, std::int64_t end) {
  const auto D = static_cast<std::size_t>(x.cols);
  const ConstRow w(weight, 0);
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow in(x, n);
    const Row out(y, n);
    Sum sum;
    ForEachVector(D, [&](auto d, std::size_t i) HWY_ATTR {
      const auto value = in.Load(d, i);
      sum.MulAdd(d, value, value);
    });
    const float r = 1.0f / std::sqrt(sum.Total() / static_cast<float>(D) + epsilon);
    rstd.Row<float>(0)[n] = r;
    ForEachVector(D, [&](auto d, std::size_t i) HWY_ATTR {
      out.Store(d, hn::Mul(hn::Mul(w.Load(d, i), in.Load(d, i)), hn::Set(d, r)), i);
    });
  }
}

void RmsNormBackward(const ConstMatrixView& dy, const ConstMatrixView& x,
                     const ConstMatrixView& weight, const ConstMatrixView& rstd,
                     const MatrixView& dx, Store store, std::int64_t begin, std::int64_t end) {
  const auto D = static_cast<std::size_t>(x.cols);
  const ConstRow w(weight, 0);
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow g(dy, n);
    const ConstRow in(x, n);
    const Row out(dx, n);
    Sum sum;
    ForEachVector(D, [&](auto d, std::size_t i) HWY_ATTR {
      sum.MulAdd(d, hn::Mul(w.Load(d, i), g.Load(d, i)), in.Load(d, i));
    });
    const float r = rstd.Row<float>(0)[n];
    const float projection = r * r * r * (sum.Total() / static_cast<float>(D));
    ForEachVector(D, [&](auto d, std::size_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::Mul(w.Load(d, i), g.Load(d, i)), hn::Set(d, r));
      auto value = hn::NegMulAdd(in.Load(d, i), hn::Set(d, projection), scaled);
      if (store == Store::kAdd) value = hn::Add(value, out.Load(d, i));
      out.Store(d, value, i);
    });
  }
}

void Rope(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
          bool inverse, const MatrixView& x, std::int64_t begin, std::int64_t end) {
  const auto half = static_cast<std::size_t>(table.cos.cols);
  const auto K = static_cast<std::size_t>(x.cols / heads);
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t position = positions[n];
    const ConstRow cos(table.cos, position);
    const ConstRow sin(table.sin, position);
    const Row row(x, n);
    for (std::size_t first = 0; first < static_cast<std::size_t>(x.cols); first += K) {
      ForEachVector(half, [&](auto d, std::size_t i) HWY_ATTR {
        const auto c = cos.Load(d, i);
        const auto s = inverse ? hn::Neg(sin.Load(d, i)) : sin.Load(d, i);
        const auto x1 = row.Load(d, first + i);
        const auto x2 = row.Load(d, first + i + half);
        row.Store(d, hn::NegMulAdd(x2, s, hn::Mul(x1, c)), first + i);
        row.Store(d, hn::MulAdd(x1, s, hn::Mul(x2, c)), first + i + half);
      });
    }
  }
}

namespace {

// Both activations are x sigmoid(z(x)): silu has z = x, and gelu by tanh has
// z = 2 sqrt(2 / pi) (x + 0.044715 x^3), because (1 + tanh(z / 2)) / 2 = sigmoid(z).
// The error of Highway's Exp is at most one unit in the last place.
template <class D>
struct Activated {
  hn::Vec<D> value;
  hn::Vec<D> slope;
};
template <class D>
HWY_INLINE Activated<D> Activate(D d, Activation activation, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  auto z = x;
  auto z_slope = one;
  if (activation == Activation::kGeluTanh) {
    const auto c = hn::Set(d, 1.5957691216057308f);
    const auto ax2 = hn::Mul(hn::Set(d, 0.044715f), hn::Mul(x, x));
    z = hn::Mul(hn::Mul(c, x), hn::Add(one, ax2));
    z_slope = hn::Mul(c, hn::MulAdd(hn::Set(d, 3.0f), ax2, one));
  }
  // Beyond 87 the sigmoid is 0 or 1 to float32, and within, neither e nor 1 / e overflows.
  const auto e = hn::Exp(d, hn::Min(hn::Max(hn::Neg(z), hn::Set(d, -87.0f)), hn::Set(d, 87.0f)));
  const auto sigmoid = hn::Div(one, hn::Add(one, e));
  const auto rest = hn::Mul(e, sigmoid);  // 1 - sigmoid, without cancellation
  const auto value = hn::Mul(x, sigmoid);
  return {value, hn::MulAdd(hn::Mul(value, rest), z_slope, sigmoid)};
}

}  // namespace

void Gated(Activation activation, const ConstMatrixView& gate, const ConstMatrixView& up,
           const MatrixView& y, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow g(gate, n);
    const ConstRow u(up, n);
    const Row out(y, n);
    ForEachVector(static_cast<std::size_t>(y.cols), [&](auto d, std::size_t i) HWY_ATTR {
      out.Store(d, hn::Mul(Activate(d, activation, g.Load(d, i)).value, u.Load(d, i)), i);
    });
  }
}

void GatedBackward(Activation activation, const ConstMatrixView& dy, const ConstMatrixView& gate,
                   const ConstMatrixView& up, const MatrixView& d_gate, const MatrixView& d_up,
                   std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const ConstRow g(gate, n);
    const ConstRow u(up, n);
    const ConstRow gradient(dy, n);
    const Row out_gate(d_gate, n);
    const Row out_up(d_up, n);
    ForEachVector(static_cast<std::size_t>(dy.cols), [&](auto d, std::size_t i) HWY_ATTR {
      const auto act = Activate(d, activation, g.Load(d, i));
      const auto dv = gradient.Load(d, i);
      const auto up_value = u.Load(d, i);
      out_gate.Store(d, hn::Mul(hn::Mul(dv, up_value), act.slope), i);
      out_up.Store(d, hn::Mul(dv, act.value), i);
    });
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

HWY_EXPORT(Copy);
void CopyRows(const ConstMatrixView& x, std::span<const std::int32_t> from, const MatrixView& y,
              std::span<const std::int32_t> to, bool add, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Copy)(x, from, y, to, add, begin, end);
}

HWY_EXPORT(Scale);
void ScaleRows(const ConstMatrixView& x, const ConstMatrixView& scale, const MatrixView& y,
               std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Scale)(x, scale, y, begin, end);
}

HWY_EXPORT(RmsNorm);
void RmsNormRows(const ConstMatrixView& x, const ConstMatrixView& weight, float epsilon,
                 const MatrixView& y, const MatrixView& rstd, std::int64_t begin,
                 std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, epsilon, y, rstd, begin, end);
}

HWY_EXPORT(RmsNormBackward);
void RmsNormBackwardRows(const ConstMatrixView& dy, const ConstMatrixView& x,
                         const ConstMatrixView& weight, const ConstMatrixView& rstd,
                         const MatrixView& dx, Store store, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackward)(dy, x, weight, rstd, dx, store, begin, end);
}

HWY_EXPORT(Rope);
void RopeRows(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
              bool inverse, const MatrixView& x, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Rope)(positions, table, heads, inverse, x, begin, end);
}

HWY_EXPORT(Gated);
void GatedRows(Activation activation, const ConstMatrixView& gate, const ConstMatrixView& up,
               const MatrixView& y, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(Gated)(activation, gate, up, y, begin, end);
}

HWY_EXPORT(GatedBackward);
void GatedBackwardRows(Activation activation, const ConstMatrixView& dy,
                       const ConstMatrixView& gate, const ConstMatrixView& up,
                       const MatrixView& d_gate, const MatrixView& d_up, std::int64_t begin,
                       std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(GatedBackward)(activation, dy, gate, up, d_gate, d_up, begin, end);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

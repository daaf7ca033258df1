// Optimizers and the sum of squares, over contiguous float32 ranges.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"
#include "quant/dynamic_map.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

namespace {

// Contiguous float32 ranges of n elements.
struct Ranges {
  const float* g;
  float* p;
  float* m;
  float* v;
  std::int64_t n;
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p = p (1 - lr decay) - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
void AdamW(const UpdateArgs& args, const Ranges& r) {
  // The corrections are computed in float64: for small t, 1 - beta2^t is a difference of nearly
  // equal numbers, of which float32 keeps only about four digits when beta2 = 0.999.
  const auto step = static_cast<double>(args.step);
  const auto rate = static_cast<float>(args.learning_rate / (1 - std::pow(args.beta1, step)));
  const auto root = static_cast<float>(std::sqrt(1 - std::pow(args.beta2, step)));
  const auto decay = static_cast<float>(1 - args.learning_rate * args.weight_decay);
  // gradient_scale joins the mean over accumulated batches and the clipping to the largest norm:
  // applied as g is read, gradients need no separate pass that rewrites them.
  const auto scale = static_cast<float>(args.gradient_scale);
  const auto beta1 = static_cast<float>(args.beta1);
  const auto beta2 = static_cast<float>(args.beta2);
  const auto rest1 = static_cast<float>(1 - args.beta1);
  const auto rest2 = static_cast<float>(1 - args.beta2);
  const auto epsilon = static_cast<float>(args.epsilon);
  ForEachVector(r.n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, r.g + i), hn::Set(d, scale));
    const auto m_new =
        hn::MulAdd(hn::Set(d, beta1), hn::LoadU(d, r.m + i), hn::Mul(hn::Set(d, rest1), g));
    const auto v_new = hn::MulAdd(hn::Set(d, beta2), hn::LoadU(d, r.v + i),
                                  hn::Mul(hn::Mul(hn::Set(d, rest2), g), g));
    const auto width = hn::Add(hn::Div(hn::Sqrt(v_new), hn::Set(d, root)), hn::Set(d, epsilon));
    const auto update = hn::Div(hn::Mul(hn::Set(d, rate), m_new), width);
    hn::StoreU(m_new, d, r.m + i);
    hn::StoreU(v_new, d, r.v + i);
    hn::StoreU(hn::MulSub(hn::Set(d, decay), hn::LoadU(d, r.p + i), update), d, r.p + i);
  });
}

// p = p (1 - lr decay) - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
void Lion(const UpdateArgs& args, const Ranges& r) {
  const auto rate = static_cast<float>(args.learning_rate);
  const auto decay = static_cast<float>(1 - args.learning_rate * args.weight_decay);
  const auto scale = static_cast<float>(args.gradient_scale);
  const auto beta1 = static_cast<float>(args.beta1);
  const auto beta2 = static_cast<float>(args.beta2);
  const auto rest1 = static_cast<float>(1 - args.beta1);
  const auto rest2 = static_cast<float>(1 - args.beta2);
  ForEachVector(r.n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, r.g + i), hn::Set(d, scale));
    const auto m = hn::LoadU(d, r.m + i);
    const auto blend = hn::MulAdd(hn::Set(d, beta1), m, hn::Mul(hn::Set(d, rest1), g));
    // sign(0) = 0: CopySign alone would move parameters without any gradient by the whole rate.
    const auto size = hn::IfThenElseZero(hn::Ne(blend, hn::Zero(d)), hn::Set(d, rate));
    const auto update = hn::CopySign(size, blend);
    hn::StoreU(hn::MulAdd(hn::Set(d, beta2), m, hn::Mul(hn::Set(d, rest2), g)), d, r.m + i);
    hn::StoreU(hn::MulSub(hn::Set(d, decay), hn::LoadU(d, r.p + i), update), d, r.p + i);
  });
}

// m = momentum m + g + decay p;  p -= lr m
void Sgd(const UpdateArgs& args, const Ranges& r) {
  const auto rate = static_cast<float>(args.learning_rate);
  const auto decay = static_cast<float>(args.weight_decay);
  const auto scale = static_cast<float>(args.gradient_scale);
  const auto momentum = static_cast<float>(args.beta1);
  ForEachVector(r.n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto p = hn::LoadU(d, r.p + i);
    auto m = hn::MulAdd(hn::LoadU(d, r.g + i), hn::Set(d, scale), hn::Mul(hn::Set(d, decay), p));
    // Without momentum no state is kept, and m is the gradient itself.
    if (r.m != nullptr) {
      m = hn::MulAdd(hn::Set(d, momentum), hn::LoadU(d, r.m + i), m);
      hn::StoreU(m, d, r.m + i);
    }
    hn::StoreU(hn::NegMulAdd(hn::Set(d, rate), m, p), d, r.p + i);
  });
}

void UpdateRanges(const UpdateArgs& args, const Ranges& ranges) {
  switch (args.rule) {
    case UpdateRule::kAdamW:
      return AdamW(args, ranges);
    case UpdateRule::kLion:
      return Lion(args, ranges);
    case UpdateRule::kSgd:
      return Sgd(args, ranges);
  }
}

// A moment as float32: in place, or decoded into a buffer block by block.
class MomentBlocks {
 public:
  MomentBlocks(const Moment& moment, const DynamicMap& map) : moment_(moment), map_(map) {}
  bool coded() const { return !moment_.values.empty() && moment_.values.dtype == DType::kU8; }

  float* Load(std::int64_t begin, std::int64_t count) {
    if (moment_.values.empty()) return nullptr;
    if (!coded()) return moment_.values.Row<float>(0) + begin;
    map_.Decode(Codes(begin), *Scale(begin), count, buffer_);
    return buffer_;
  }
  void Store(std::int64_t begin, std::int64_t count) {
    // The scale is the largest |value| of a block, known only after the whole block is updated:
    // that is why updates of coded moments go block by block.
    if (coded()) *Scale(begin) = map_.Encode(buffer_, count, Codes(begin));
  }

 private:
  std::uint8_t* Codes(std::int64_t begin) const {
    return moment_.values.Row<std::uint8_t>(0) + begin;
  }
  float* Scale(std::int64_t begin) const {
    return moment_.scales.Row<float>(0) + begin / kDynamicBlock;
  }

  const Moment& moment_;
  const DynamicMap& map_;
  float buffer_[kDynamicBlock];
};

}  // namespace

void Update(const ops::Update& op, Range elements) {
  MomentBlocks m(op.m_inout, DynamicMap::Signed());
  MomentBlocks v(op.v_inout, DynamicMap::Unsigned());
  const bool coded = m.coded() || v.coded();
  // Ranges begin at multiples of kElementsPerTask, itself a multiple of kDynamicBlock, so a block
  // is never shared by two tasks that would each write its scale.
  const std::int64_t piece = coded ? kDynamicBlock : elements.end - elements.begin;
  for (std::int64_t i = elements.begin; i < elements.end; i += piece) {
    const std::int64_t count = std::min(piece, elements.end - i);
    UpdateRanges(op.args, {op.gradient.Row<float>(0) + i, op.param_inout.Row<float>(0) + i,
                           m.Load(i, count), v.Load(i, count), count});
    m.Store(i, count);
    v.Store(i, count);
  }
}

// In float64; vectors of half as many lanes as float32.
double SumOfSquares(const ConstMatrixView& x, Range elements) {
  const auto [begin, end] = elements;
  const float* row = x.Row<float>(0);
  double total = 0;
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = begin; i < end; ++i) total += static_cast<double>(row[i]) * row[i];
#else
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const std::int64_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto value = hn::PromoteTo(d, hn::LoadU(df, row + i));
    sum = hn::MulAdd(value, value, sum);
  }
  total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < end; ++i) total += static_cast<double>(row[i]) * row[i];
#endif
  return total;
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(Update);
void UpdateRange(const ops::Update& op, Range elements) {
  HWY_DYNAMIC_DISPATCH(Update)(op, elements);
}

HWY_EXPORT(SumOfSquares);
double SumOfSquaresRange(const ConstMatrixView& x, Range elements) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(x, elements);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

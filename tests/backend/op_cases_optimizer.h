// Updates of the optimizers. Part of op_cases.h.
#ifndef QLORA_TESTS_BACKEND_OP_CASES_OPTIMIZER_H_
#define QLORA_TESTS_BACKEND_OP_CASES_OPTIMIZER_H_

#include <algorithm>
#include <vector>

#include "backend/op_cases.h"
#include "backend/test_rows.h"
#include "backend/test_util.h"
#include "quant/dynamic_map.h"

namespace qlora::testing_util {

TEST_P(OpTest, AdamW) {
  std::uint64_t seed = 1700;
  for (const std::int64_t size : {1, 15, 64, 1001}) {
    for (const std::int64_t step : {1, 2, 1000}) {
      for (const double decay : {0.0, 0.1}) {
        Random random(++seed);
        const UpdateArgs args = {.learning_rate = 2e-3,
                                 .beta2 = 0.99,
                                 .weight_decay = decay,
                                 .step = step,
                                 .gradient_scale = 0.125};
        Matrix g = random.Normal(wide(), 1, size, 1);
        for (std::int64_t i = 1; i < size; i += 3) {  // so small that epsilon matters, and zeros
          g.Set(0, i, i % 2 == 0 ? 1e-8 * g(0, i) : 0);
        }
        Matrix p = random.Normal(wide(), 1, size, 1);
        Matrix m = random.Normal(wide(), 1, size, step == 1 ? 0 : 0.1);
        Matrix v = Map(random.Normal(wide(), 1, size, step == 1 ? 0 : 0.1), wide(),
                       [](Complex x) { return x * x; });
        if (step == 1) p.Set(0, 0, 0.0);
        const Matrix before = p;
        const Matrix m_before = m;
        const Matrix g64 = Convert(g, DType::kF64);
        Matrix p64 = Convert(p, DType::kF64);
        Matrix m64 = Convert(m, DType::kF64);
        Matrix v64 = Convert(v, DType::kF64);
        backend().Run(ops::Update{args, g.view(), p.view(), {m.view(), {}}, {v.view(), {}}});
        reference().Run(
            ops::Update{args, g64.view(), p64.view(), {m64.view(), {}}, {v64.view(), {}}});
        const double unit = 12 * UnitRoundoff(wide());
        const auto m_size = [&](std::int64_t i) {
          return args.beta1 * std::abs(m_before(0, i)) +
                 (1 - args.beta1) * std::abs(g(0, i) * args.gradient_scale);
        };
        ExpectWithin(m, m64,
                     Bound(m64, [&](std::int64_t, std::int64_t i) { return unit * m_size(i); }),
                     "m");
        ExpectWithin(v, v64, Scaled(unit, Abs(v64)), "v");
        ExpectWithin(p, p64,
                     Bound(p64,
                           [&](std::int64_t, std::int64_t i) {
                             const auto t = static_cast<double>(step);
                             const double root =
                                 std::sqrt(v64(0, i) / (1 - std::pow(args.beta2, t)));
                             const double rate = args.learning_rate / (1 - std::pow(args.beta1, t));
                             return unit * (std::abs(before(0, i)) +
                                            rate * m_size(i) / (root + args.epsilon));
                           }),
                     "p");
      }
    }
  }
}

TEST_P(OpTest, LionAndSgd) {
  std::uint64_t seed = 1750;
  for (const std::int64_t size : {1, 15, 64, 1001}) {
    for (const UpdateRule rule : {UpdateRule::kLion, UpdateRule::kSgd}) {
      for (const double beta1 : {0.0, 0.9}) {
        Random random(++seed);
        const UpdateArgs args = {.rule = rule,
                                 .learning_rate = 2e-3,
                                 .beta1 = beta1,
                                 .beta2 = 0.99,
                                 .weight_decay = 0.1,
                                 .gradient_scale = 0.125};
        Matrix g = random.Normal(wide(), 1, size, 1);
        g.Set(0, 0, 0.0);
        Matrix p = random.Normal(wide(), 1, size, 1);
        Matrix m = random.Normal(wide(), 1, size, 0.1);
        m.Set(0, 0, 0.0);
        const bool has_m = rule == UpdateRule::kLion || beta1 != 0;
        const Matrix g64 = Convert(g, DType::kF64);
        Matrix p64 = Convert(p, DType::kF64);
        Matrix m64 = Convert(m, DType::kF64);
        const Matrix p_size = Abs(p64);
        const Matrix m_size = Abs(m64);
        backend().Run(
            ops::Update{args, g.view(), p.view(), has_m ? Moment{m.view(), {}} : Moment{}, {}});
        reference().Run(ops::Update{
            args, g64.view(), p64.view(), has_m ? Moment{m64.view(), {}} : Moment{}, {}});
        const double unit = 8 * UnitRoundoff(wide());
        const auto bound = [&](std::int64_t, std::int64_t i) {
          return unit * (p_size(0, i) + m_size(0, i) + std::abs(g64(0, i)));
        };
        ExpectWithin(p, p64, Bound(p64, bound), "p");
        if (has_m) ExpectWithin(m, m64, Bound(m64, bound), "m");
      }
    }
  }
}

// Codes and scales of a moment with the given values.
struct CodedMoment {
  CodedMoment(const Matrix& values, const DynamicMap& map)
      : codes(static_cast<std::size_t>(values.cols())) {
    for (std::int64_t begin = 0; begin < values.cols(); begin += kDynamicBlock) {
      const std::int64_t count = std::min(kDynamicBlock, values.cols() - begin);
      std::vector<float> block;
      for (std::int64_t i = begin; i < begin + count; ++i) {
        block.push_back(static_cast<float>(values(0, i)));
      }
      scales.push_back(map.Encode(block.data(), count, codes.data() + begin));
    }
  }
  Moment view() {
    return {MakeView(codes.data(), 1, static_cast<std::int64_t>(codes.size())),
            MakeView(scales.data(), 1, static_cast<std::int64_t>(scales.size()))};
  }

  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

TEST_P(OpTest, UpdateWithMomentsInEightBits) {
  if (wide() != DType::kF32) return;  // codes stand for float32 values
  std::uint64_t seed = 1770;
  for (const std::int64_t size : {1, 255, 256, 1001, 70000}) {
    Random random(++seed);
    const UpdateArgs args = {.learning_rate = 2e-3, .beta2 = 0.99, .step = 3};
    const Matrix g = random.Normal(wide(), 1, size, 1);
    Matrix p = random.Normal(wide(), 1, size, 1);
    const Matrix m0 = random.Normal(wide(), 1, size, 0.1);
    const Matrix v0 = Map(m0, wide(), [](Complex x) { return x * x + 1e-3; });
    CodedMoment m(m0, DynamicMap::Signed());
    CodedMoment v(v0, DynamicMap::Unsigned());
    CodedMoment m_reference = m;
    CodedMoment v_reference = v;
    Matrix p_reference = p;
    backend().Run(ops::Update{args, g.view(), p.view(), m.view(), v.view()});
    reference().Run(
        ops::Update{args, g.view(), p_reference.view(), m_reference.view(), v_reference.view()});
    ExpectWithin(p, Convert(p_reference, DType::kF64),
                 Bound(p,
                       [&](std::int64_t, std::int64_t i) {
                         return 16 * UnitRoundoff(wide()) * (std::abs(p_reference(0, i)) + 1);
                       }),
                 "p");
    // A rounding can move a value over the midpoint of two codes.
    int differing = 0;
    for (std::size_t i = 0; i < m.codes.size(); ++i) {
      EXPECT_LE(std::abs(m.codes[i] - m_reference.codes[i]), 1) << i;
      EXPECT_LE(std::abs(v.codes[i] - v_reference.codes[i]), 1) << i;
      differing += m.codes[i] != m_reference.codes[i] || v.codes[i] != v_reference.codes[i];
    }
    EXPECT_LE(differing, 1 + size / 1000);
  }
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_OP_CASES_OPTIMIZER_H_

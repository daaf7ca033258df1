// Products in 8 bits: every kernel has the bits of the scalar definition, in all shapes, and leaves
// bias and adapter as they are. Those that are not the fastest of their target have fewer cases of
// what does not depend on them.
#include <algorithm>
#include <vector>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/int8/coded_panels.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/simd_kernels.h"
#include "backend/test_linear.h"
#include "base/arena.h"

namespace qlora::testing_util {
namespace {

class CpuInt8 : public testing::TestWithParam<SimdKernels> {
 protected:
  CpuInt8() : context_(2) { SetSimdKernels(GetParam()); }
  ~CpuInt8() override { SetSimdTarget(BestSimdTarget()); }

  std::unique_ptr<Backend> Make(DType operands, FrozenProducts frozen = FrozenProducts::kInt8) {
    return MakeCpuBackend(context_, {operands, frozen});
  }

  // The bits of the definition, rounded once to the type of the group.
  void ExpectDefinition(const LinearCase& c, LinearGroup group) {
    LinearGroup expected = group.In(DType::kF32);
    expected.order = SumOrder::kFastest;
    const auto backend = Make(group.x.dtype());
    backend->Reserve(LimitsOf(c));
    const auto reference = MakeReferenceBackend(FrozenProducts::kInt8);
    expected.Backward(*reference, Store::kSet);
    group.Backward(*backend, Store::kSet);
    ExpectEqual(group.dx, Convert(expected.dx, group.dx.dtype()), "dx");
    expected.Forward(*reference, Store::kSet);
    const auto forward = [&] {
      for (const SumOrder order : {SumOrder::kFew, SumOrder::kMany, SumOrder::kFastest}) {
        if (order == SumOrder::kFew && c.rows > kMostFewRows) continue;
        group.order = order;
        group.Forward(*backend, Store::kSet);
        for (std::size_t l = 0; l < c.out.size(); ++l) {
          ExpectEqual(group.y[l], Convert(expected.y[l], group.y[l].dtype()), "y");
        }
      }
    };
    forward();
    if (group.weights[0].view().form() != WeightForm::kBlocks) return;
    group.Prepack(*backend);
    forward();
  }

 private:
  Context context_;
};

// Multiplies a column of every `step`-th row.
void ScaleColumn(Matrix& m, std::int64_t column, std::int64_t step, double factor) {
  for (std::int64_t r = 0; r < m.rows(); r += step) m.Set(r, column, factor * m(r, column));
}

LinearCase Case(std::int64_t rows, std::int64_t in, std::vector<std::int64_t> out,
                WeightKind kind) {
  LinearCase c = {"case", rows, in, std::move(out), kind};
  c.order = SumOrder::kFew;  // of the workspace: any
  return c;
}

// Operands of a product by their definition, with what kernels may read behind them.
class ProductCase {
 public:
  ProductCase(std::int64_t k, std::int64_t rows, std::int64_t width, bool more)
      : k_(k), rows_(rows), width_(width), more_(more), random_(k + rows + width) {
    for (std::int8_t& code : a_) code = Code();
    for (std::int8_t& code : x_) code = Code();
    for (std::vector<float>* values : {&scales_, &factors_, &before_}) {
      for (float& value : *values) value = static_cast<float>(random_.Normal());
    }
  }

  // (rows, width), by int8_product.h.
  std::vector<float> Expected() const {
    std::vector<float> c(before_.begin(), before_.begin() + rows_ * width_);
    for (std::int64_t i = 0; i < rows_ * width_; ++i) {
      const std::int64_t row = i / width_;
      const std::int64_t lane = i % width_;
      float sum = more_ ? c[i] : 0;
      for (std::int64_t g = 0; g < groups(); ++g) {
        int products = 0;
        for (std::int64_t j = g * 128; j < std::min(k_, (g + 1) * 128); ++j) {
          products += a_[row * k_ + j] * x_[lane * k_ + j];
        }
        sum = std::fma(static_cast<float>(products), scales_[g * width_ + lane], sum);
      }
      c[i] = more_ ? sum * factors_[row] : sum;
    }
    return c;
  }

  std::vector<float> Run(const cpu::Int8Kernels& kernels, bool quads) const {
    std::vector<std::uint8_t> a(std::max(room(), padded() / 4) * cpu::kInt8Stride, 77);
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t j = 0; j < k_; ++j) {
        a[quads ? j / 4 * cpu::kInt8Stride + 4 * r + j % 4 : r * cpu::kInt8Stride + j] =
            static_cast<std::uint8_t>(a_[r * k_ + j] + kernels.offset);
      }
    }
    std::vector<std::int8_t> panel(padded() * width_);
    std::vector<std::int32_t> starts(groups() * width_);
    for (std::int64_t j = 0; j < k_; ++j) {
      for (std::int64_t lane = 0; lane < width_; ++lane) {
        const std::int8_t code = x_[lane * k_ + j];
        panel[(j / 4 * width_ + lane) * 4 + j % 4] = code;
        starts[j / 128 * width_ + lane] -= 128 * code;
      }
    }
    std::vector<float> c = before_;
    if (kernels.begin != nullptr) kernels.begin();
    kernels.multiply({.rows = rows_,
                      .k = k_,
                      .width = width_,
                      .a = a.data(),
                      .quads = quads,
                      .panel = panel.data(),
                      .scales = scales_.data(),
                      .starts = starts.data(),
                      .c = c.data(),
                      .c_stride = width_,
                      .add = more_,
                      .factors = more_ ? factors_.data() : nullptr});
    if (kernels.end != nullptr) kernels.end();
    c.resize(rows_ * width_);
    return c;
  }

  // Of the first lanes, as dot products of each row.
  std::vector<float> RunDots(const cpu::Int8Kernels& kernels, std::int64_t lanes) const {
    std::vector<std::int8_t> panels(lanes * padded());
    std::vector<float> scales(lanes * groups());
    std::vector<std::int32_t> starts(lanes * groups());
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      for (std::int64_t j = 0; j < k_; ++j) {
        panels[lane * padded() + j] = x_[lane * k_ + j];
        starts[lane * groups() + j / 128] -= 128 * x_[lane * k_ + j];
      }
      for (std::int64_t g = 0; g < groups(); ++g) {
        scales[lane * groups() + g] = scales_[g * width_ + lane];
      }
    }
    std::vector<float> c(rows_ * lanes);
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::vector<std::uint8_t> a(padded(), 77);
      for (std::int64_t j = 0; j < k_; ++j) {
        a[j] = static_cast<std::uint8_t>(a_[r * k_ + j] + kernels.offset);
      }
      kernels.dots({.rows = 1,
                    .k = padded(),
                    .a = a.data(),
                    .lanes = lanes,
                    .panels = panels.data(),
                    .k_stride = padded(),
                    .scales = scales.data(),
                    .starts = starts.data(),
                    .group_stride = groups(),
                    .c = c.data() + r * lanes,
                    .c_stride = lanes});
    }
    return c;
  }
  std::vector<float> ExpectedDots(std::int64_t lanes) const {
    const std::vector<float> all = Expected();
    std::vector<float> c;
    for (std::int64_t r = 0; r < rows_; ++r) {
      c.insert(c.end(), all.begin() + r * width_, all.begin() + r * width_ + lanes);
    }
    return c;
  }

 private:
  std::int8_t Code() { return static_cast<std::int8_t>(random_.Below(255) - 127); }
  std::int64_t groups() const { return (k_ + 127) / 128; }
  std::int64_t padded() const {
    return (k_ + cpu::kInt8Depth - 1) / cpu::kInt8Depth * cpu::kInt8Depth;
  }
  std::int64_t room() const { return (rows_ + 15) / 16 * 16; }

  std::int64_t k_;
  std::int64_t rows_;
  std::int64_t width_;
  bool more_;
  Random random_;
  std::vector<std::int8_t> a_ = std::vector<std::int8_t>(rows_ * k_);
  std::vector<std::int8_t> x_ = std::vector<std::int8_t>(width_ * k_);
  std::vector<float> scales_ = std::vector<float>(groups() * width_);
  std::vector<float> factors_ = std::vector<float>(room());
  std::vector<float> before_ = std::vector<float>(room() * width_);
};

// For each sum, what its definition in int8_product.h says.
TEST_P(CpuInt8, KernelsComputeTheSameBits) {
  const cpu::Int8Kernels& kernels = cpu::KernelsOf(GetParam().int8);
  for (const std::int64_t k : {4, 60, 128, 130, 384, 448, 512}) {
    for (const std::int64_t rows : {1, 5, 6, 13, 48, 128}) {
      for (const std::int64_t width : {cpu::kInt8Vector, cpu::kInt8Lanes}) {
        for (const bool more : {false, true}) {
          const ProductCase product(k, rows, width, more);
          SCOPED_TRACE(fmt::format("{} {} {}", k, rows, width));
          EXPECT_EQ(product.Run(kernels, false), product.Expected());
          if (kernels.quads) {
            EXPECT_EQ(product.Run(kernels, true), product.Expected());
          }
          if (more || kernels.dots == nullptr) continue;
          EXPECT_EQ(product.RunDots(kernels, kernels.most_dots),
                    product.ExpectedDots(kernels.most_dots));
        }
      }
    }
  }
}

TEST_P(CpuInt8, EqualsTheDefinitionInAllShapes) {
  // Rows of x: one, about the vectors and panels of lanes, several panels. Columns: less than a
  // group, chunks that begin within blocks, rows that begin within blocks and bytes, tails of a
  // group and of a step.
  std::uint64_t seed = 1;
  std::vector<std::int64_t> all_rows = {1, 3, 15, 16, 17, 31, 33, 48, 49, 96, 150};
  if (!AreFastest(GetParam())) all_rows = {1, 17, 49};
  for (const std::int64_t rows : all_rows) {
    for (const std::int64_t in : {64, 172, 201, 320, 576}) {
      const LinearCase c = Case(rows, in, {7, 131}, WeightKind::kNf4);
      SCOPED_TRACE(fmt::format("{} rows, {} columns", rows, in));
      ExpectDefinition(c, MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF64, seed++));
    }
  }
}

// Along k, codes are made of 512 values at a time, and sums go on; what the next ones are made of
// is fetched. Columns of dx: whole tasks and a half; rows of the last four are missing.
TEST_P(CpuInt8, EqualsTheDefinitionOfManyValues) {
  for (const LinearCase& c :
       {Case(17, 320, {1027}, WeightKind::kNf4DoubleBnb),
        Case(40, 1216, {131}, WeightKind::kNf4DoubleBnb), Case(530, 192, {70}, WeightKind::kNf4)}) {
    SCOPED_TRACE(fmt::format("{} rows, {} columns", c.rows, c.in));
    ExpectDefinition(c, MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF64, 10));
  }
}

TEST_P(CpuInt8, EqualsTheDefinitionForAllFormats) {
  std::vector<WeightKind> kinds = {
      WeightKind::kNf4,         WeightKind::kNf4DoubleBnb, WeightKind::kNf4DoubleBnb100,
      WeightKind::kNf4Block128, WeightKind::kQ4_0,         WeightKind::kIq4Nl,
      WeightKind::kQ8_0,        WeightKind::kMxfp4,        WeightKind::kQ4_K,
      WeightKind::kQ6_K};
  std::vector<std::int64_t> all_rows = {5, 70};
  if (!AreFastest(GetParam())) {
    kinds = {WeightKind::kNf4DoubleBnb, WeightKind::kQ4_K};
    all_rows = {70};
  }
  for (const WeightKind kind : kinds) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t rows : all_rows) {
        const LinearCase c = Case(rows, 1280, {130, 40}, kind);
        SCOPED_TRACE(fmt::format("{} {} {}", static_cast<int>(kind), NameOf(type), rows));
        ExpectDefinition(c, MakeLinearGroup(c, {type, DType::kF32}, DType::kF64, 3));
      }
    }
  }
}

// Rows of x that are few enough for dot products, each a lane, and one more: rows of a weight four
// at a time and fewer, with and without codes that are clamped; sums of one group, of more than a
// vector has lanes, and of more columns than are multiplied at a time.
TEST_P(CpuInt8, EqualsTheDefinitionForFewRows) {
  const std::int64_t most_dots = cpu::KernelsOf(GetParam().int8).most_dots;
  for (std::int64_t rows = 1; rows <= most_dots + 1; ++rows) {
    for (const std::int64_t in : {64, 2240, 16704}) {
      for (const bool clamps : {false, true}) {
        const LinearCase c = Case(rows, in, {4, 7}, WeightKind::kNf4);
        SCOPED_TRACE(fmt::format("{} rows, {} columns, {}", rows, in, clamps));
        LinearGroup group = MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF64, 8);
        if (clamps) group.weights[1].ScaleBlock(2 * in / 64 + in / 80, 70);
        ExpectDefinition(c, group);
      }
    }
  }
}

// The same without chunks: blocks of ggml, and rows that begin within a chunk.
TEST_P(CpuInt8, EqualsTheDefinitionForLongRows) {
  for (const WeightKind kind : {WeightKind::kQ8_0, WeightKind::kQ4_K, WeightKind::kNf4}) {
    const std::int64_t in = kind == WeightKind::kNf4 ? 16484 : 16640;
    const LinearCase c = Case(1, in, {3}, kind);
    SCOPED_TRACE(fmt::format("{}", static_cast<int>(kind)));
    ExpectDefinition(c, MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF64, 9));
  }
}

// Columns that some rows or all of them keep in float32; several in one group; weights that are
// clamped, beside them and apart.
TEST_P(CpuInt8, EqualsTheDefinitionBesideOutliers) {
  std::vector<std::int64_t> all_rows = {2, 40, 97};
  if (!AreFastest(GetParam())) all_rows = {40};
  for (const std::int64_t rows : all_rows) {
    for (const std::int64_t in : {1280, 1300}) {
      const LinearCase c = Case(rows, in, {140, 150}, WeightKind::kNf4);
      SCOPED_TRACE(fmt::format("{} rows, {} columns", rows, in));
      LinearGroup group = MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF64, 4);
      ScaleColumn(group.x, 5, 1, 1000);
      ScaleColumn(group.x, 9, 3, -700);
      ScaleColumn(group.x, 700, 2, 400);
      ScaleColumn(group.x, in - 1, 1, 2000);
      for (Matrix& dy : group.dy) {
        ScaleColumn(dy, 3, 1, 500);
        ScaleColumn(dy, 130, 2, 3000);
      }
      for (const std::int64_t row : {0, 3, 77, 139}) {
        group.weights[0].ScaleBlock(row * in / 64 + 2, 70);
        group.weights[1].ScaleBlock(row * in / 64 + 11, -90);
      }
      // One block of a row of zeros: nothing is left out where nothing else remains.
      for (std::int64_t block = 0; block < in / 64; ++block) {
        if (block != 6) group.weights[0].ScaleBlock(20 * in / 64 + block, 0);
      }
      group.x.Set(1, 40, std::numeric_limits<double>::min() / 4);
      ExpectDefinition(c, group);
    }
  }
}

// The adapter, the bias and what was there before, of the same operands as without 8 bits.
TEST_P(CpuInt8, AddsBiasAndAdapterToTheProduct) {
  for (const Store store : {Store::kSet, Store::kAdd}) {
    for (const std::int64_t rows : {4, 180}) {
      LinearCase c = Case(rows, 320, {96, 50}, WeightKind::kNf4DoubleBnb);
      c.rank = 6;
      c.bias = true;
      c.dropout = 0.25f;
      c.store = store;
      LinearGroup group = MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF64, 5);
      group.order = SumOrder::kFastest;
      LinearGroup expected = group;
      LinearGroup magnitude = group.In(DType::kF64);
      for (std::size_t l = 0; l < c.out.size(); ++l) {
        magnitude.weights[l] = TestWeight(Abs(group.weights[l].Values()));
      }
      magnitude.ForEach([](Matrix& m) { m = Abs(m); });
      const auto backend = Make(DType::kF32);
      backend->Reserve(LimitsOf(c));
      const auto reference = MakeReferenceBackend(FrozenProducts::kInt8);
      const auto magnitudes = MakeReferenceBackend();
      // Of both sides; a code that is rounded up is less than twice as large.
      const double g = 4 * Gamma(rows + 320 + 160, UnitRoundoff(DType::kF32));
      group.Backward(*backend, store);
      expected.Backward(*reference, store);
      magnitude.Backward(*magnitudes, store);
      ExpectWithin(group.dx, expected.dx, Scaled(g, magnitude.dx), "dx");
      for (std::size_t l = 0; l < c.out.size(); ++l) {
        ExpectWithin(group.da[l], expected.da[l], Scaled(g, magnitude.da[l]), "da");
        ExpectWithin(group.db[l], expected.db[l], Scaled(g, magnitude.db[l]), "db");
      }
      group.Forward(*backend, store);
      expected.Forward(*reference, store);
      magnitude.Forward(*magnitudes, store);
      for (std::size_t l = 0; l < c.out.size(); ++l) {
        ExpectWithin(group.u[l], expected.u[l], Scaled(g, magnitude.u[l]), "u");
        ExpectWithin(group.y[l], expected.y[l], Scaled(g, magnitude.y[l]), "y");
      }
    }
  }
}

// Dense weights are multiplied as without 8 bits, also in a group with quantized ones; so is dx
// where only the forward pass is in 8 bits.
TEST_P(CpuInt8, LeavesOtherProductsAsTheyAre) {
  const LinearCase c = Case(70, 320, {64, 80}, WeightKind::kNf4);
  LinearGroup group = MakeLinearGroup(c, {DType::kBF16, DType::kF32}, DType::kBF16, 6);
  const LinearCase other = Case(70, 320, {64, 80}, WeightKind::kBF16);
  group.weights[1] =
      MakeLinearGroup(other, {DType::kBF16, DType::kF32}, DType::kBF16, 7).weights[1];
  group.order = SumOrder::kFastest;
  LinearGroup plain = group;
  const auto coded = Make(DType::kBF16, FrozenProducts::kInt8Forward);
  const auto floats = Make(DType::kBF16, FrozenProducts::kFloat);
  coded->Reserve(LimitsOf(c));
  floats->Reserve(LimitsOf(c));
  group.Backward(*coded, Store::kSet);
  plain.Backward(*floats, Store::kSet);
  ExpectEqual(group.dx, plain.dx, "dx");
  group.order = plain.order = SumOrder::kMany;
  group.Forward(*coded, Store::kSet);
  plain.Forward(*floats, Store::kSet);
  ExpectEqual(group.y[1], plain.y[1], "y of a dense weight");
}

TEST_P(CpuInt8, NeedsNoMoreWorkspaceThanBfloat16) {
  const auto coded = Make(DType::kBF16);
  const auto floats = Make(DType::kBF16, FrozenProducts::kFloat);
  BackendLimits limits = {
      .features = 11264, .vocab_rows = 64, .vocab = 32000, .lora_rank = 64, .any_order = false};
  for (const std::int64_t rows : {64, 512, 4096}) {
    limits.rows = limits.gradient_rows = rows;
    EXPECT_LE(coded->WorkspaceBytes(limits), floats->WorkspaceBytes(limits)) << rows;
  }
  // Serving: the rows of each of 16 adapters are rounded up to kInt8Vector lanes in place of a
  // vector of the other type; a lane has two sums for each of 64 rows, of each of two workers. A
  // panel has scales, starts and columns of spikes beside its codes, which is more than eight lanes
  // of bfloat16 have.
  limits.any_order = true;
  limits.gradient_rows = 0;
  const cpu::Kernels& kernels = cpu::SelectKernels(DType::kBF16);
  const std::int64_t lanes = 16 * (cpu::kInt8Vector - kernels.vector);
  std::vector<IndexRange> adapters;
  for (std::int64_t i = 0; i < 16; ++i) adapters.push_back({i, i + 1});
  Carver coded_panels;
  cpu::CodedPanels(coded_panels, adapters, limits.features, /*are_single=*/false);
  Carver float_panels;
  float_panels.Matrix(ElementType(kernels), 16 * kernels.vector, limits.features);
  const std::size_t panels =
      std::max(coded_panels.bytes(), float_panels.bytes()) - float_panels.bytes();
  for (const std::int64_t rows : {1, 64, 512, 4096}) {
    limits.rows = rows;
    EXPECT_LE(coded->WorkspaceBytes(limits),
              floats->WorkspaceBytes(limits) + panels + lanes * 2 * 64 * sizeof(float) * 2)
        << rows;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CpuInt8, testing::ValuesIn(AllSimdKernels()),
                         [](const auto& kernels) { return NameOf(kernels.param); });

}  // namespace
}  // namespace qlora::testing_util

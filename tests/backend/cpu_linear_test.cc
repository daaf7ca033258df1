// Shapes that only the cuts of the CPU backend make special: more rows than a chunk, ranks beyond a
// tile; and what it refuses.
#include <deque>
#include <utility>

#include "backend/packed_lora.h"
#include "backend/test_attention.h"
#include "backend/test_linear.h"
#include "machine/simd_target.h"
#include "pass/pass_shape.h"
#include "qlora/error.h"

namespace qlora::testing_util {
namespace {

constexpr Precision kFloat = {DType::kF32, DType::kF32};

class CpuLinear : public testing::TestWithParam<SimdTarget> {
 protected:
  CpuLinear() : context_(2) { SetSimdTarget(GetParam()); }

  std::unique_ptr<Backend> Make(const Compute& compute) {
    return MakeCpuBackend(context_, compute);
  }

 private:
  Context context_;
};

// The op on absolute values: every output becomes the sum of the absolute values of its terms.
LinearGroup Magnitudes(const LinearGroup& group) {
  LinearGroup out = group;
  for (std::size_t l = 0; l < group.weights.size(); ++l) {
    out.weights[l] = TestWeight(Abs(group.weights[l].Values()));
  }
  out.ForEach([](Matrix& m) { m = Abs(m); });
  return out;
}

TEST_P(CpuLinear, AgreesWithTheReferenceInLargeShapes) {
  std::vector<LinearCase> cases = {
      {"rows_beyond_a_chunk", 1100, 70, {50}, WeightKind::kNf4, 6, true, 0.25f, Store::kAdd},
      {"rank_beyond_a_tile", 70, 96, {80, 40}, WeightKind::kBF16, 130, false, 0.5f},
      {"rank_beyond_a_block_of_k", 3, 64, {40}, WeightKind::kNf4DoubleBnb, 600},
      {"vocabulary", 9, 64, {2000}, WeightKind::kF16},
  };
  cases.push_back({"scales_from_the_middle", 70, 1088, {130, 7}, WeightKind::kNf4DoubleBnb, 4});
  // Every number of rows that dot products take, and more; nested blocks that end within a row of
  // the weight, between two chunks.
  for (std::int64_t rows = 1; rows <= 26; ++rows) {
    cases.push_back({"few_rows", rows, 320, {130, 7}, WeightKind::kNf4DoubleBnb, 4, rows % 2 == 0});
  }
  for (const LinearCase& c : cases) {
    SCOPED_TRACE(c.name);
    LinearGroup group = MakeLinearGroup(c, kFloat, DType::kF64, 1);
    LinearGroup expected = group.In(DType::kF64);
    LinearGroup magnitude = Magnitudes(group);
    const auto backend = Make(DType::kF32);
    backend->Reserve(LimitsOf(c));
    const auto reference = MakeReferenceBackend();
    std::int64_t terms = c.rows + c.in + 9;
    for (const std::int64_t O : c.out) terms += O + c.rank;
    const double g = Gamma(terms, UnitRoundoff(DType::kF32));

    group.Backward(*backend, c.store);  // first: Forward overwrites u
    expected.Backward(*reference, c.store);
    magnitude.Backward(*reference, c.store);
    ExpectWithin(group.dx, expected.dx, Scaled(g, magnitude.dx), "dx");
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      ExpectWithin(group.da[l], expected.da[l], Scaled(g, magnitude.da[l]), "da");
      ExpectWithin(group.db[l], expected.db[l], Scaled(g, magnitude.db[l]), "db");
    }
    group.Forward(*backend, c.store);
    expected.Forward(*reference, c.store);
    magnitude.Forward(*reference, c.store);
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      ExpectWithin(group.u[l], expected.u[l], Scaled(g, magnitude.u[l]), "u");
      ExpectWithin(group.y[l], expected.y[l], Scaled(g, magnitude.y[l]), "y");
    }
  }
}

// A row's result does not depend on the rows beside it: the bits are those of separate calls, and
// adapter gradients those of accumulation over the chunks.
TEST_P(CpuLinear, ManyRowsEqualSeparateCalls) {
  constexpr std::int64_t kChunk = 1024;  // rows
  constexpr std::int64_t kRest = 200;    // more than dot products take
  const LinearCase c = {"case", kChunk + kRest, 128, {96}, WeightKind::kNf4DoubleBnb, 8};
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    LinearGroup whole = MakeLinearGroup(c, kFloat, DType::kBF16, 1);
    LinearGroup parts = whole;
    const auto backend = Make(compute);
    backend->Reserve(LimitsOf(c));
    whole.Forward(*backend, c.store);
    whole.Backward(*backend, c.store);
    const std::vector<LinearView> views = parts.Views();
    for (const std::int64_t row : {std::int64_t{0}, kChunk}) {
      const std::int64_t rows = std::min(kChunk, c.rows - row);
      const auto cut = [&](Matrix& m) { return Rows(m.view(), row, rows); };
      const LinearOutput output = {cut(parts.y[0]), cut(parts.u[0])};
      backend->Run(ops::Linear{views, cut(parts.x), {&output, 1}, c.store});
      const LinearGradient gradient = {cut(parts.dy[0]), cut(parts.u[0]), parts.da[0].view(),
                                       parts.db[0].view()};
      backend->Run(
          ops::LinearBackward{views, cut(parts.x), {&gradient, 1}, cut(parts.dx), c.store});
    }
    ExpectEqual(whole.y[0], parts.y[0], "y");
    ExpectEqual(whole.u[0], parts.u[0], "u");
    ExpectEqual(whole.dx, parts.dx, "dx");
    ExpectEqual(whole.da[0], parts.da[0], "da");
    ExpectEqual(whole.db[0], parts.db[0], "db");
  }
}

constexpr WeightKind kAllKinds[] = {
    WeightKind::kF32,          WeightKind::kF16,  WeightKind::kBF16,  WeightKind::kNf4,
    WeightKind::kNf4DoubleBnb, WeightKind::kQ4_0, WeightKind::kIq4Nl, WeightKind::kQ8_0,
    WeightKind::kMxfp4,        WeightKind::kQ4_K, WeightKind::kQ6_K};

// Runs rows [begin, end) of a group as a product of their own.
void RunRows(Backend& backend, LinearGroup& group, std::int64_t begin, std::int64_t end,
             SumOrder order = SumOrder::kFew) {
  std::vector<LinearOutput> outputs;
  const auto cut = [&](Matrix& m) {
    return m.empty() ? MatrixView{} : Rows(m.view(), begin, end - begin);
  };
  for (std::size_t l = 0; l < group.y.size(); ++l) {
    outputs.push_back({cut(group.y[l]), cut(group.u[l])});
  }
  backend.Run(ops::Linear{group.Views(), cut(group.x), outputs, Store::kSet, order});
}

// In any number of other rows.
void ExpectNoRowDependsOnOthers(Backend& backend, DType compute, const LinearCase& c,
                                bool prepacked) {
  LinearGroup whole = MakeLinearGroup(c, {compute, DType::kF32}, DType::kF32, 1);
  if (prepacked) {
    if (backend.PrepackedBytes(whole.weights[0].view().quantized) == 0) return;
    whole.Prepack(backend);
  }
  backend.Reserve(LimitsOf(c));
  LinearGroup parts = whole;
  RunRows(backend, whole, 0, c.rows, c.order);
  for (const std::int64_t most : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 25, 50, 96, 150}) {
    if (most > c.rows) continue;
    for (std::int64_t row = 0; row < c.rows; row += most) {
      RunRows(backend, parts, row, std::min(row + most, c.rows), c.order);
    }
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      ExpectEqual(whole.y[l], parts.y[l], "y");
      ExpectEqual(whole.u[l], parts.u[l], "u");
    }
  }
}

TEST_P(CpuLinear, InOneOrderARowDependsOnNoOther) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto backend = Make(compute);
    for (const WeightKind kind : kAllKinds) {
      const bool is_4bit = kind == WeightKind::kNf4 || kind == WeightKind::kNf4DoubleBnb;
      const bool is_dense =
          kind == WeightKind::kF32 || kind == WeightKind::kF16 || kind == WeightKind::kBF16;
      for (const SumOrder order : {SumOrder::kFew, SumOrder::kMany}) {
        SCOPED_TRACE(fmt::format("{} {} {}", NameOf(compute), static_cast<int>(kind),
                                 static_cast<int>(order)));
        LinearCase c = {"case", kMostFewRows, 768, {48, 32}, kind, 8, true};
        c.order = order;
        // Several panels of rows of x.
        if (order == SumOrder::kMany) c.rows = 200;
        ExpectNoRowDependsOnOthers(*backend, compute, c, false);
        if (is_4bit) ExpectNoRowDependsOnOthers(*backend, compute, c, true);
        // More rows than dot products take at a time.
        if (is_4bit && order == SumOrder::kMany) {
          LinearCase many = {"many", 1100, 128, {32}, kind, 8};
          many.order = order;
          ExpectNoRowDependsOnOthers(*backend, compute, many, true);
        }
        c.in = 700;  // no whole chunks
        if (is_dense) ExpectNoRowDependsOnOthers(*backend, compute, c, false);
      }
    }
  }
}

std::vector<Compute> Computes() {
  return {{DType::kF32},
          {DType::kBF16},
          {DType::kF32, FrozenProducts::kInt8Forward},
          {DType::kBF16, FrozenProducts::kInt8Forward}};
}

enum class GroupWeights : std::uint8_t { kAsTheyAre, kPrepacked, kOneDense };

// One product for rows of several adapters has the bits of a product for each.
void ExpectRangesEqualSeparateCalls(Backend& backend, DType compute, LinearCase c,
                                    GroupWeights weights = GroupWeights::kAsTheyAre) {
  LinearGroup group = MakeLinearGroup(c, {compute, DType::kF32}, DType::kF32, 1);
  if (weights == GroupWeights::kOneDense) {
    group.weights[1] = TestWeight(Convert(group.weights[1].Values(), DType::kF32));
  }
  if (weights == GroupWeights::kPrepacked) {
    if (backend.PrepackedBytes(group.weights[0].view().quantized) == 0) return;
    group.Prepack(backend);
  }
  // Spikes of some rows, which 8 bits leave in float32.
  for (std::int64_t n = 0; n < c.rows; n += 3) group.x.Set(n, 5, 1000 * group.x(n, 5));
  LinearGroup none = group;
  LinearGroup other = group;
  const std::int64_t rank = std::exchange(c.rank, 3);
  const LinearGroup narrow = MakeLinearGroup(c, {compute, DType::kF32}, DType::kF32, 2);
  c.rank = rank;
  backend.Reserve(LimitsOf(c));
  std::vector<LinearView> views = group.Views();
  std::vector<std::vector<LoraView>> loras(3);
  for (std::size_t l = 0; l < views.size(); ++l) {
    other.a[l] = narrow.a[l];
    other.b[l] = narrow.b[l];
    other.u[l] = narrow.u[l];
    none.a[l] = none.b[l] = none.u[l] = Matrix();
    loras[0].push_back(views[l].lora);
    loras[1].push_back({});
    loras[2].push_back(other.Views()[l].lora);
    views[l].lora = {};
  }
  LinearGroup together = group;
  // Each adapter leaves a linear out, not the same.
  loras[0][0] = loras[2][1] = {};
  group.a[0] = group.b[0] = group.u[0] = Matrix();
  other.a[1] = other.b[1] = other.u[1] = Matrix();
  const LoraRows ranges[] = {{0, 10, loras[0]}, {10, 1, loras[1]}, {11, c.rows - 11, loras[2]}};
  std::vector<LinearOutput> outputs;
  for (std::size_t l = 0; l < views.size(); ++l) {
    outputs.push_back({together.y[l].view(), together.u[l].view()});
  }
  backend.Run(
      ops::Linear{views, std::as_const(together.x).view(), outputs, Store::kSet, c.order, ranges});
  RunRows(backend, group, 0, 10, c.order);
  RunRows(backend, none, 10, 11, c.order);
  RunRows(backend, other, 11, c.rows, c.order);
  for (std::size_t l = 0; l < views.size(); ++l) {
    for (std::int64_t n = 0; n < c.rows; ++n) {
      const LinearGroup& of = n < 10 ? group : n < 11 ? none : other;
      for (std::int64_t o = 0; o < c.out[l]; ++o) {
        ASSERT_EQ(together.y[l](n, o), of.y[l](n, o)) << l << ' ' << n << ' ' << o;
      }
    }
  }
}

TEST_P(CpuLinear, RangesOfAdaptersEqualSeparateCalls) {
  for (const Compute& precision : Computes()) {
    const DType compute = precision.operands;
    const auto backend = Make(precision);
    for (const WeightKind kind : {WeightKind::kBF16, WeightKind::kNf4, WeightKind::kQ4_K}) {
      LinearCase c = {"case", 40, 256, {48, 33}, kind, 8, true};
      c.order = SumOrder::kFew;
      ExpectRangesEqualSeparateCalls(*backend, compute, c);
      c.order = SumOrder::kMany;
      c.rows = 150;
      ExpectRangesEqualSeparateCalls(*backend, compute, c);
      // More rows of a weight in a task of 8 bits.
      c.out = {520, 33};
      ExpectRangesEqualSeparateCalls(*backend, compute, c);
      if (kind != WeightKind::kNf4) continue;
      ExpectRangesEqualSeparateCalls(*backend, compute, c, GroupWeights::kOneDense);
      c.out = {48, 32};
      ExpectRangesEqualSeparateCalls(*backend, compute, c, GroupWeights::kPrepacked);
      // More rows than dot products take at a time.
      c.rows = 1100;
      ExpectRangesEqualSeparateCalls(*backend, compute, c, GroupWeights::kPrepacked);
    }
  }
}

// More ranges than panels take at a time: a row each, and more rows than a chunk has.
TEST_P(CpuLinear, ManyRangesEqualOne) {
  constexpr std::int64_t kRanges = 20;
  for (const Compute& compute : Computes()) {
    const auto backend = Make(compute);
    for (const std::int64_t rows : {1, 55}) {
      LinearCase c = {"case", kRanges * rows, 128, {32}, WeightKind::kNf4, 8, true};
      c.order = SumOrder::kMany;
      LinearGroup one = MakeLinearGroup(c, {compute.operands, DType::kF32}, DType::kF32, 1);
      LinearGroup many = one;
      backend->Reserve(LimitsOf(c));
      one.Forward(*backend, c.store);
      std::vector<LinearView> views = many.Views();
      const std::vector<LoraView> loras = {std::exchange(views[0].lora, {})};
      std::vector<LoraRows> ranges;
      for (std::int64_t r = 0; r < kRanges; ++r) ranges.push_back({r * rows, rows, loras});
      const LinearOutput output = {many.y[0].view(), many.u[0].view()};
      backend->Run(
          ops::Linear{views, std::as_const(many.x).view(), {&output, 1}, c.store, c.order, ranges});
      ExpectEqual(one.y[0], many.y[0], "y");
      ExpectEqual(one.u[0], many.u[0], "u");
    }
  }
}

// As LoraAdapter::Pack has it.
Matrix PackedB(const Matrix& b, DType dtype) {
  const std::int64_t rank = b.cols();
  Matrix packed(dtype, PackedRows(b.rows(), rank), kPackedRows);
  for (std::int64_t o = 0; o < b.rows(); ++o) {
    for (std::int64_t r = 0; r < rank; ++r) {
      packed.Set(o / kPackedRows * rank + r, o % kPackedRows, b(o, r));
    }
  }
  return packed;
}

// What is packed once for all products are the values that each product would pack.
TEST_P(CpuLinear, PackedAdaptersHaveTheSameBits) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto backend = Make(compute);
    for (const SumOrder order : {SumOrder::kFastest, SumOrder::kFew, SumOrder::kMany}) {
      for (const std::int64_t rows : {1, 3, 70, 90}) {
        SCOPED_TRACE(fmt::format("{} {} {}", NameOf(compute), static_cast<int>(order), rows));
        LinearCase c = {"case", rows, 320, {48, 133}, WeightKind::kNf4, 19};
        c.order = order;
        LinearGroup group = MakeLinearGroup(c, {compute, DType::kF32}, DType::kF32, 1);
        LinearGroup packed = group;
        backend->Reserve(LimitsOf(c));
        group.Forward(*backend, c.store);
        std::vector<LinearView> views = packed.Views();
        std::vector<LinearOutput> outputs;
        std::deque<Matrix> operands;  // which views point into
        for (std::size_t l = 0; l < views.size(); ++l) {
          views[l].lora.packed_a = operands.emplace_back(Convert(group.a[l], compute)).view();
          views[l].lora.packed_b = operands.emplace_back(PackedB(group.b[l], compute)).view();
          outputs.push_back({packed.y[l].view(), packed.u[l].view()});
        }
        backend->Run(ops::Linear{views, std::as_const(packed.x).view(), outputs, c.store, order});
        for (std::size_t l = 0; l < views.size(); ++l) {
          ExpectEqual(group.y[l], packed.y[l], "y");
          ExpectEqual(group.u[l], packed.u[l], "u");
        }
      }
    }
  }
}

// Many rows of x read decoded rows, which do not depend on how the weight lay before.
TEST_P(CpuLinear, PrepackedWeightsDecodeToTheSameBits) {
  for (const WeightKind kind : {WeightKind::kNf4, WeightKind::kNf4DoubleBnb}) {
    const LinearCase c = {"case", 200, 1088, {112}, kind, 8};
    LinearGroup row_major = MakeLinearGroup(c, kFloat, DType::kBF16, 1);
    LinearGroup prepacked = row_major;
    const auto backend = Make(DType::kBF16);
    backend->Reserve(LimitsOf(c));
    prepacked.Prepack(*backend);
    row_major.Forward(*backend, c.store);
    prepacked.Forward(*backend, c.store);
    ExpectEqual(row_major.y[0], prepacked.y[0], "y");
  }
}

// Kernels that decode blocks as they pack them give what packing the decoded values gives. 1120
// columns: rows of blocks of 32 that are no whole chunks; 107 rows: an odd k of dx.
TEST_P(CpuLinear, BlocksDecodeToTheSameBits) {
  for (const WeightKind kind : {WeightKind::kQ4_0, WeightKind::kIq4Nl, WeightKind::kQ8_0,
                                WeightKind::kMxfp4, WeightKind::kQ4_K, WeightKind::kQ6_K}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const bool large = kind == WeightKind::kQ4_K || kind == WeightKind::kQ6_K;
    // Up to 256 rows of dy, a task of dx has two chunks of columns.
    for (const std::int64_t rows : {70, 300}) {
      const LinearCase c = {"case", rows, large ? 1280 : 1120, {107}, kind, 8};
      LinearGroup blocks = MakeLinearGroup(c, kFloat, DType::kF64, 1);
      LinearGroup dense = blocks;
      dense.weights[0] = TestWeight(Convert(blocks.weights[0].Values(), DType::kF32));
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        const auto backend = Make(compute);
        backend->Reserve(LimitsOf(c));
        for (LinearGroup* group : {&blocks, &dense}) {
          group->Backward(*backend, c.store);
          group->Forward(*backend, c.store);
        }
        ExpectEqual(blocks.y[0], dense.y[0], "y");
        ExpectEqual(blocks.dx, dense.dx, "dx");
      }
    }
  }
}

TEST_P(CpuLinear, RefusesToRunBeyondItsWorkspace) {
  const LinearCase c = {"case", 600, 512, {512}, WeightKind::kNf4, 8};
  LinearGroup group = MakeLinearGroup(c, kFloat, DType::kBF16, 1);
  const auto backend = Make(DType::kF32);
  EXPECT_THROW(group.Forward(*backend, c.store), Error);
  backend->Reserve({.rows = 8, .features = 512, .lora_rank = 8, .gradient_rows = 8});
  EXPECT_THROW(group.Backward(*backend, c.store), Error);
  backend->Reserve({.rows = 600, .features = 512, .lora_rank = 8});
  group.Forward(*backend, c.store);
  EXPECT_THROW(group.Backward(*backend, c.store), Error);
  backend->Reserve(LimitsOf(c));
  group.Forward(*backend, c.store);
  group.Backward(*backend, c.store);
}

TEST_P(CpuLinear, PlansMoreForMore) {
  const auto backend = Make(DType::kBF16);
  const BackendLimits small = {
      .rows = 64, .features = 256, .heads = 4, .kv_heads = 2, .head_dim = 32};
  BackendLimits large = small;
  large.rows = 512;
  large.vocab_rows = 64;
  large.vocab = 32000;
  EXPECT_GT(backend->WorkspaceBytes(small), 0u);
  EXPECT_GT(backend->WorkspaceBytes(large), backend->WorkspaceBytes(small));
  BackendLimits evaluated = small;
  evaluated.rows = 512;
  BackendLimits trained = evaluated;
  trained.gradient_rows = 512;
  trained.gradient_length = 512;
  EXPECT_GT(backend->WorkspaceBytes(trained), backend->WorkspaceBytes(evaluated));
}

INSTANTIATE_TEST_SUITE_P(All, CpuLinear,
                         testing::ValuesIn(SimdTargets().begin(), SimdTargets().end()),
                         [](const auto& target) { return NameOf(target.param); });

}  // namespace
}  // namespace qlora::testing_util

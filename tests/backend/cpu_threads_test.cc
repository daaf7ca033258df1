// Results of the CPU backend have the same bits for any number of threads.
#include <array>

#include "backend/test_attention.h"
#include "backend/test_linear.h"
#include "backend/test_recurrent.h"
#include "machine/simd_target.h"
#include "pass/pass_shape.h"

namespace qlora::testing_util {
namespace {

constexpr std::array<int, 3> kThreads = {1, 2, 4};

struct Target {
  SimdTarget simd;
  DType compute;
  FrozenProducts frozen = FrozenProducts::kFloat;
};

std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (const SimdTarget simd : SimdTargets()) {
    if (!MultipliesBfloat16(simd)) targets.push_back({simd, DType::kF32});
    targets.push_back({simd, DType::kBF16});
    targets.push_back({simd, DType::kBF16, FrozenProducts::kInt8});
  }
  return targets;
}

class CpuThreads : public testing::TestWithParam<Target> {
 protected:
  CpuThreads() {
    SetSimdTarget(GetParam().simd);
    for (std::size_t i = 0; i < kThreads.size(); ++i) {
      contexts_[i] = std::make_unique<Context>(kThreads[i]);
      backends_[i] = MakeCpuBackend(*contexts_[i], {GetParam().compute, GetParam().frozen});
    }
  }

  // run(backend) for every number of threads; same(first, other) compares what it returns.
  template <typename Run, typename Same>
  void ForEachCount(const Run& run, const Same& same) {
    const auto first = run(*backends_[0]);
    for (std::size_t i = 1; i < kThreads.size(); ++i) {
      SCOPED_TRACE(std::to_string(kThreads[i]) + " threads");
      same(first, run(*backends_[i]));
    }
  }

  Precision precision() const { return {GetParam().compute, DType::kF32}; }

 private:
  std::array<std::unique_ptr<Context>, kThreads.size()> contexts_;
  std::array<std::unique_ptr<Backend>, kThreads.size()> backends_;
};

TEST_P(CpuThreads, Linear) {
  std::vector<LinearCase> cases = {
      {"prepacked_decode", 1, 512, {512, 128}, WeightKind::kNf4DoubleBnb, 16},
      {"prepacked_batches", 40, 320, {512}, WeightKind::kNf4, 16},
      {"prepacked_panels", 200, 320, {192}, WeightKind::kNf4DoubleBnb, 16},
      {"prepacked_on_the_way", 40, 320, {512}, WeightKind::kNf4DoubleBnb, 16},
      {"group", 150, 320, {192, 64, 64}, WeightKind::kNf4DoubleBnb, 16, false, 0.1f},
      {"decode", 1, 512, {512}, WeightKind::kNf4DoubleBnb, 16},
      {"few_rows", 5, 512, {512}, WeightKind::kNf4, 16},
      {"blocks_of_k", 8, 1600, {300}, WeightKind::kNf4DoubleBnb, 16},
      {"head", 70, 64, {1000}, WeightKind::kBF16},
      {"two_chunks", 1100, 64, {64}, WeightKind::kNf4, 8},
  };
  for (std::size_t i = 0; i < 3; ++i) cases[i].prepacked = true;
  for (const LinearCase& c : cases) {
    SCOPED_TRACE(c.name);
    const auto run = [&](Backend& backend) {
      LinearGroup group = MakeLinearGroup(c, precision(), DType::kBF16, 1);
      if (c.prepacked) group.Prepack(backend);
      backend.Reserve(LimitsOf(c));
      group.Forward(backend, c.store);
      group.Backward(backend, c.store);
      return group;
    };
    ForEachCount(run, [](const LinearGroup& a, const LinearGroup& b) {
      for (std::size_t l = 0; l < a.y.size(); ++l) {
        ExpectEqual(b.y[l], a.y[l], "y");
        ExpectEqual(b.u[l], a.u[l], "u");
        ExpectEqual(b.da[l], a.da[l], "da");
        ExpectEqual(b.db[l], a.db[l], "db");
      }
      ExpectEqual(b.dx, a.dx, "dx");
    });
  }
}

TEST_P(CpuThreads, Attention) {
  const AttentionShape shape = {.heads = 6, .kv_heads = 2, .head_dim = 32, .scale = 0.2f};
  for (const AttentionCase& c : {AttentionCase{"packed", shape, Packed({200, 90})},
                                 {"window", shape, Packed({150})},
                                 {"heads_of_a_task",
                                  {.heads = 32, .kv_heads = 4, .head_dim = 16, .scale = 0.25f},
                                  Packed({140})}}) {
    SCOPED_TRACE(c.name);
    const auto run = [&](Backend& backend) {
      AttentionData data = MakeAttentionData(c, precision(), DType::kBF16, 2);
      backend.Reserve(LimitsOf(c));
      data.Forward(backend, c);
      data.Backward(backend, c);
      return data;
    };
    ForEachCount(run, [](const AttentionData& a, const AttentionData& b) {
      ExpectEqual(b.o, a.o, "o");
      ExpectEqual(b.lse, a.lse, "lse");
      ExpectEqual(b.dq, a.dq, "dq");
      ExpectEqual(b.dk, a.dk, "dk");
      ExpectEqual(b.dv, a.dv, "dv");
    });
  }
}

TEST_P(CpuThreads, LayersWithAState) {
  const ConvCase conv = {"conv", 300, 4, SpansOf({250, 3, 400})};
  const DeltaCase delta = {"delta", {6, 3, 32, 32}, SpansOf({150, 5, 70})};
  const auto run = [&](Backend& backend) {
    std::pair<ConvData, DeltaData> data = {MakeConvData(conv, precision(), 4),
                                           MakeDeltaData(delta, precision(), 5)};
    backend.Reserve(LimitsOf(delta));
    data.first.Forward(backend, conv, true);
    data.first.Backward(backend, conv);
    data.second.Forward(backend, delta, true);
    data.second.Backward(backend, delta);
    return data;
  };
  ForEachCount(run, [](const auto& a, const auto& b) {
    ExpectEqual(b.first.y, a.first.y, "y");
    ExpectEqual(b.first.dx, a.first.dx, "dx");
    ExpectEqual(b.second.o, a.second.o, "o");
    ExpectEqual(b.second.state, a.second.state, "state");
    ExpectEqual(b.second.dq, a.second.dq, "dq");
    ExpectEqual(b.second.dk, a.second.dk, "dk");
    ExpectEqual(b.second.dv, a.second.dv, "dv");
    ExpectEqual(b.second.da, a.second.da, "da");
    ExpectEqual(b.second.db, a.second.db, "db");
  });
}

TEST_P(CpuThreads, RowsAndElements) {
  struct Result {
    Matrix norm, rstd, logits, loss, gate, dx;
    Matrix moved = {};
    Matrix kl = {};
    double sum = 0;
  };
  const auto run = [&](Backend& backend) {
    Random random(3);
    const Matrix x = random.Normal(precision().activation, 300, 333, 1);
    const Matrix weight = random.Normal(DType::kF32, 1, 333, 1);
    Result r = {Matrix(precision().activation, 300, 333),
                Matrix(DType::kF32, 1, 300),
                random.Normal(DType::kF32, 100, 1000, 3),
                Matrix(DType::kF32, 1, 100),
                random.Normal(precision().activation, 300, 1, 1),
                random.Normal(precision().activation, 300, 333, 1)};
    std::vector<std::int32_t> targets;
    for (int n = 0; n < 100; ++n) targets.push_back(static_cast<std::int32_t>(random.Below(1000)));
    backend.Run(ops::RmsNorm{x.view(), weight.view(), 1e-5f, r.norm.view(), r.rstd.view()});
    backend.Run(
        ops::GateRowsBackward{r.dx.view(), x.view(), r.gate.view(), r.gate.view(), r.dx.view()});
    const Matrix row_scale = Filled(DType::kF32, 1, r.logits.rows(), 0.01);
    backend.Run(ops::CrossEntropy{targets, 0, row_scale.view(), r.logits.view(), r.loss.view()});
    Matrix base = random.Normal(DType::kF32, 100, 1000, 3);
    r.moved = random.Normal(DType::kF32, 100, 1000, 3);
    r.kl = Matrix(DType::kF32, 1, 100);
    backend.Run(ops::KlDivergence{0, 1, base.view(), r.moved.view(), r.kl.view()});
    const Matrix flat = random.Normal(DType::kF32, 1, 200000, 1, DType::kF32);
    r.sum = SumOfSquaresOf(backend, flat.view());
    return r;
  };
  ForEachCount(run, [](const Result& a, const Result& b) {
    ExpectEqual(b.norm, a.norm, "norm");
    ExpectEqual(b.rstd, a.rstd, "rstd");
    ExpectEqual(b.gate, a.gate, "gate");
    ExpectEqual(b.dx, a.dx, "dx");
    ExpectEqual(b.logits, a.logits, "logits");
    ExpectEqual(b.loss, a.loss, "loss");
    ExpectEqual(b.moved, a.moved, "moved");
    ExpectEqual(b.kl, a.kl, "kl");
    EXPECT_EQ(b.sum, a.sum);
  });
}

INSTANTIATE_TEST_SUITE_P(All, CpuThreads, testing::ValuesIn(Targets()), [](const auto& target) {
  const bool int8 = target.param.frozen != FrozenProducts::kFloat;
  return fmt::format("{}_{}", NameOf(target.param.simd),
                     int8 ? "I8" : NameOf(target.param.compute));
});

}  // namespace
}  // namespace qlora::testing_util

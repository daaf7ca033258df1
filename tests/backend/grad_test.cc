// Every backward formula against the derivative of its forward formula, by complex step
// (test_gradient.h); those of layers with a state are in recurrent_grad_test.cc.
#include <gtest/gtest.h>

#include "backend/test_attention.h"
#include "backend/test_gradient.h"
#include "backend/test_linear.h"

namespace qlora::testing_util {
namespace {

class GradTest : public testing::Test {
 protected:
  Matrix Normal(std::int64_t rows, std::int64_t cols, double deviation = 1) {
    return random_.Normal(DType::kF64, rows, cols, deviation);
  }
  Matrix Zeros(const Matrix& like, DType dtype) {
    return Filled(dtype, like.rows(), like.cols(), 0);
  }

  const std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
  Random random_{20};
};

TEST_F(GradTest, RmsNorm) {
  for (const auto& [rows, cols] : {std::pair{1, 1}, std::pair{3, 8}, std::pair{2, 37}}) {
    for (const Store store : {Store::kSet, Store::kAdd}) {
      const float epsilon = 0.25f;  // large, so that it matters
      const Matrix x = Normal(rows, cols);
      const Matrix w = Normal(1, cols);
      const Matrix dy = Normal(rows, cols);
      Matrix xc = Convert(x, DType::kC128);
      const Matrix wc = Convert(w, DType::kC128);
      Matrix y(DType::kC128, rows, cols);
      Matrix rstd_c(DType::kC128, 1, rows);
      const Matrix expected = ComplexStep(xc, [&] {
        backend_->Run(ops::RmsNorm{xc.view(), wc.view(), epsilon, y.view(), rstd_c.view()});
        return Contract(dy, y);
      });

      Matrix y64(DType::kF64, rows, cols);
      Matrix rstd(DType::kF64, 1, rows);
      backend_->Run(ops::RmsNorm{x.view(), w.view(), epsilon, y64.view(), rstd.view()});
      const Matrix before = store == Store::kAdd ? Normal(rows, cols) : Zeros(x, DType::kF64);
      Matrix dx = store == Store::kAdd ? before : Poisoned(x);
      backend_->Run(
          ops::RmsNormBackward{dy.view(), x.view(), w.view(), rstd.view(), dx.view(), store});
      ExpectGradient(Difference(dx, before), expected, "dx");
    }
  }
}

std::vector<LinearCase> SmallLinearCases() {
  using enum WeightKind;
  std::vector<LinearCase> cases = {
      {"plain", 2, 6, {5}, kWide},
      {"bias", 2, 6, {5}, kF32, 0, true},
      {"adapter", 3, 7, {5}, kWide, 2},
      {"adapter_bias", 3, 7, {5}, kBF16, 2, true},
      {"dropout", 4, 9, {6}, kF16, 3, false, 0.4f},
      {"group", 3, 8, {6, 3, 2}, kWide, 2, true, 0.3f},
      {"group_plain", 3, 8, {6, 3}, kF32},
      {"nf4", 2, 70, {3}, kNf4, 2},
      {"nf4_odd", 2, 33, {3}, kNf4, 1, true, 0.2f},
      {"nf4_double", 2, 96, {4}, kNf4DoubleBnb, 2},
      {"nf4_block_128", 2, 96, {4}, kNf4Block128, 2},
  };
  const std::size_t count = cases.size();
  for (std::size_t i = 0; i < count; ++i) {
    cases.push_back(cases[i]);
    cases.back().name += "_add";
    cases.back().store = Store::kAdd;
    cases.push_back(cases[i]);
    cases.back().name += "_no_dx";
    cases.back().want_dx = false;
  }
  return cases;
}

TEST_F(GradTest, Linear) {
  std::uint64_t seed = 0;
  for (const LinearCase& c : SmallLinearCases()) {
    SCOPED_TRACE(c.name);
    LinearGroup group = MakeLinearGroup(c, {DType::kF64, DType::kF64}, DType::kF64, ++seed);
    LinearGroup complex = group.In(DType::kC128);
    const auto loss = [&] {
      complex.Forward(*backend_, Store::kSet);
      Complex sum = 0;
      for (std::size_t l = 0; l < c.out.size(); ++l) sum += Contract(group.dy[l], complex.y[l]);
      return sum;
    };
    LinearGroup forward = group;
    forward.Forward(*backend_, Store::kSet);
    group.u = forward.u;
    const LinearGroup before = group;
    group.Backward(*backend_, c.store);
    for (std::size_t l = 0; l < c.out.size(); ++l) {
      ExpectGradient(Difference(group.da[l], before.da[l]), ComplexStep(complex.a[l], loss), "da");
      ExpectGradient(Difference(group.db[l], before.db[l]), ComplexStep(complex.b[l], loss), "db");
    }
    if (!c.want_dx) continue;
    const Matrix zero = Zeros(group.dx, DType::kF64);
    ExpectGradient(Difference(group.dx, c.store == Store::kAdd ? before.dx : zero),
                   ComplexStep(complex.x, loss), "dx");
  }
}

TEST_F(GradTest, Rope) {
  struct Case {
    std::int64_t rotated;
    bool interleaved;
  };
  for (const auto& c : {Case{8, false}, {4, false}, {8, true}, {4, true}}) {
    const std::int64_t rotated = c.rotated;
    const bool interleaved = c.interleaved;
    const Matrix angle = Normal(9, rotated / 2);
    const auto table = [&](double (*fn)(double), DType dtype) {
      return Map(angle, dtype, [&](Complex x) { return fn(x.real()); });
    };
    const Matrix cos = table(std::cos, DType::kF64);
    const Matrix sin = table(std::sin, DType::kF64);
    const Matrix cos_c = Convert(cos, DType::kC128);
    const Matrix sin_c = Convert(sin, DType::kC128);
    const std::vector<std::int32_t> positions = {0, 8, 3};
    Matrix x = Convert(Normal(3, 2 * 8), DType::kC128);
    Matrix dy = Normal(3, 2 * 8);
    const Matrix expected = ComplexStep(x, [&] {
      Matrix y = x;
      backend_->Run(
          ops::Rope{positions, {cos_c.view(), sin_c.view(), interleaved}, 2, false, y.view()});
      return Contract(dy, y);
    });
    backend_->Run(ops::Rope{positions, {cos.view(), sin.view(), interleaved}, 2, true, dy.view()});
    ExpectGradient(dy, expected, "dx");
  }
}

TEST_F(GradTest, Attention) {
  const auto shape = [](std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim,
                        float softcap = 0, std::int64_t window = 0) {
    return AttentionShape{heads, kv_heads, head_dim, 0.6f, softcap, window};
  };
  const std::vector<AttentionCase> cases = {
      {"one_token", shape(1, 1, 3), Packed({1})},
      {"one_head", shape(1, 1, 4), Packed({5})},
      {"many_heads", shape(3, 3, 4), Packed({5})},
      {"gqa", shape(4, 2, 3), Packed({6})},
      {"mqa", shape(3, 1, 4), Packed({5})},
      {"packed", shape(2, 1, 4), Packed({3, 1, 6})},
      {"softcap", shape(2, 1, 4, 1.5f), Packed({6})},
      {"window", shape(2, 2, 4, 0, 3), Packed({8, 2})},
      {"window_softcap_packed_gqa", shape(4, 2, 3, 2.0f, 2), Packed({5, 4})},
      {"out_of_order", shape(2, 1, 4), {{4, 3, 0, 3}, {0, 4, 3, 4}}},
      {"queries_after_cache", shape(2, 1, 4), {{0, 3, 0, 7}}},
  };
  std::uint64_t seed = 30;
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.name);
    AttentionData data = MakeAttentionData(c, {DType::kF64, DType::kF64}, DType::kF64, ++seed);
    data.Forward(*backend_, c);
    AttentionData complex = data.In(DType::kC128);
    const auto loss = [&] {
      complex.Forward(*backend_, c);
      return Contract(data.d_o, complex.o);
    };
    data.Backward(*backend_, c);
    if (c.q_rows() > 1) {
      ExpectGradient(data.dq, ComplexStep(complex.q, loss), "dq");
      ExpectGradient(data.dk, ComplexStep(complex.k, loss), "dk");
    }
    ExpectGradient(data.dv, ComplexStep(complex.v, loss), "dv");
  }
}

// The backward pass is that of attention, on the outputs of AttentionSinks.
TEST_F(GradTest, AttentionSinks) {
  const std::vector<AttentionCase> cases = {
      {"gqa", {4, 2, 3, 0.6f}, Packed({6, 1, 3})},
      {"window", {2, 2, 4, 0.6f, 0, 3}, Packed({8, 2})},
      {"softcap", {2, 1, 4, 0.6f, 1.5f}, Packed({5})},
  };
  std::uint64_t seed = 70;
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(c.name);
    const Matrix sinks = Normal(1, c.shape.heads, 2);
    const Matrix sinks_c = Convert(sinks, DType::kC128);
    AttentionData data = MakeAttentionData(c, {DType::kF64, DType::kF64}, DType::kF64, ++seed);
    AttentionData complex = data.In(DType::kC128);
    data.Forward(*backend_, c);
    backend_->Run(ops::AttentionSinks{sinks.view(), data.lse.view(), data.o.view()});
    const auto loss = [&] {
      complex.Forward(*backend_, c);
      backend_->Run(ops::AttentionSinks{sinks_c.view(), complex.lse.view(), complex.o.view()});
      return Contract(data.d_o, complex.o);
    };
    data.Backward(*backend_, c);
    ExpectGradient(data.dq, ComplexStep(complex.q, loss), "dq");
    ExpectGradient(data.dk, ComplexStep(complex.k, loss), "dk");
    ExpectGradient(data.dv, ComplexStep(complex.v, loss), "dv");
  }
}

TEST_F(GradTest, GatedActivation) {
  for (const Activation act :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kSigmoid,
        Activation::kIdentity, Activation::kClampedSwiglu}) {
    for (const double deviation : {0.1, 1.0, 5.0}) {
      const Matrix gate = Normal(3, 21, deviation);
      // Of a size that clamps bite.
      const Matrix up = Normal(3, 21, act == Activation::kClampedSwiglu ? 5 : 1);
      const Matrix dy = Normal(3, 21);
      Matrix gate_c = Convert(gate, DType::kC128);
      Matrix up_c = Convert(up, DType::kC128);
      Matrix y(DType::kC128, 3, 21);
      const auto loss = [&] {
        backend_->Run(ops::GatedActivation{act, gate_c.view(), up_c.view(), y.view()});
        return Contract(dy, y);
      };
      Matrix d_gate = Poisoned(gate);
      Matrix d_up = Poisoned(up);
      backend_->Run(ops::GatedActivationBackward{act, dy.view(), gate.view(), up.view(),
                                                 d_gate.view(), d_up.view()});
      ExpectGradient(d_gate, ComplexStep(gate_c, loss), "d_gate");
      ExpectGradient(d_up, ComplexStep(up_c, loss), "d_up");
    }
  }
}

TEST_F(GradTest, RouteExperts) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const bool sigmoids = score == RouterScore::kSigmoid;
    const float scale = sigmoids ? 2.5f : 1.0f;
    for (const bool normalize : {false, true}) {
      for (const std::int64_t k : {1, 3, 7}) {
        const Matrix logits = Normal(4, 7, 2);
        const Matrix bias = Normal(1, 7, 0.5);
        const Matrix d_weights = Normal(4, k);
        std::vector<std::int32_t> indices(4 * 4 * k + 8);
        std::int32_t* const first = indices.data();
        const RoutingView routing = {{first, 4 * k},
                                     {first + 4 * k, 4 * k},
                                     {first + 8 * k, 4 * k},
                                     {first + 12 * k, 4 * k},
                                     {first + 16 * k, 8}};
        Matrix logits_c = Convert(logits, DType::kC128);
        const Matrix bias_c = Convert(bias, DType::kC128);
        Matrix weights_c(DType::kC128, 4, k);
        const Matrix expected = ComplexStep(logits_c, [&] {
          backend_->Run(ops::RouteExperts{logits_c.view(), normalize, routing, weights_c.view(),
                                          score, sigmoids ? bias_c.view() : ConstMatrixView{},
                                          scale});
          return Contract(d_weights, weights_c);
        });
        Matrix weights(DType::kF64, 4, k);
        backend_->Run(ops::RouteExperts{logits.view(), normalize, routing, weights.view(), score,
                                        sigmoids ? bias.view() : ConstMatrixView{}, scale});
        Matrix d_logits = logits;
        backend_->Run(ops::RouteExpertsBackward{d_weights.view(), routing.experts, weights.view(),
                                                normalize, d_logits.view(), score, scale});
        // One expert that is always given everything does not depend on its logit.
        if (normalize && k == 1 && !sigmoids) {
          EXPECT_LT(Largest(d_logits), 1e-15);
        } else {
          ExpectGradient(d_logits, expected, "d_logits");
        }
      }
    }
  }
}

TEST_F(GradTest, GateRows) {
  const Matrix x = Normal(4, 21);
  const Matrix gate = Normal(4, 1, 2);
  const Matrix dy = Normal(4, 21);
  Matrix x_c = Convert(x, DType::kC128);
  Matrix gate_c = Convert(gate, DType::kC128);
  Matrix y(DType::kC128, 4, 21);
  const auto loss = [&] {
    backend_->Run(ops::GateRows{x_c.view(), gate_c.view(), y.view()});
    return Contract(dy, y);
  };
  Matrix d_gate = Poisoned(gate);
  Matrix dx = Poisoned(x);
  backend_->Run(ops::GateRowsBackward{dy.view(), x.view(), gate.view(), d_gate.view(), dx.view()});
  ExpectGradient(d_gate, ComplexStep(gate_c, loss), "d_gate");
  ExpectGradient(dx, ComplexStep(x_c, loss), "dx");
}

TEST_F(GradTest, CrossEntropy) {
  const std::vector<std::int32_t> targets = {4, 0, 16, 4};
  for (const auto& [softcap, smoothing] : {std::pair(0.0f, 0.0f), std::pair(2.5f, 0.0f),
                                           std::pair(0.0f, 0.1f), std::pair(2.5f, 0.4f)}) {
    for (const double scale : {1.0, 0.03}) {
      Matrix logits = Normal(4, 17, 3);
      Matrix logits_c = Convert(logits, DType::kC128);
      Matrix logprob_c(DType::kC128, 1, 4);
      Matrix row_scale(DType::kF64, 1, 4);
      for (std::int64_t n = 0; n < 4; ++n) row_scale.Set(0, n, scale * static_cast<double>(n));
      const Matrix expected = ComplexStep(logits_c, [&, smoothing = smoothing, cap = softcap] {
        Matrix scratch = logits_c;
        backend_->Run(
            ops::CrossEntropy{targets, cap, {}, scratch.view(), logprob_c.view(), {}, smoothing});
        return -Contract(row_scale, logprob_c);
      });
      Matrix logprob(DType::kF64, 1, 4);
      backend_->Run(ops::CrossEntropy{
          targets, softcap, row_scale.view(), logits.view(), logprob.view(), {}, smoothing});
      ExpectGradient(logits, expected, "logits");
      ExpectWithin(logprob, logprob_c, Filled(DType::kF64, 1, 4, 1e-14), "logprob");
    }
  }
}

TEST_F(GradTest, KlDivergence) {
  for (const float softcap : {0.0f, 2.5f}) {
    Matrix logits = Normal(4, 17, 3);
    Matrix base = Normal(4, 17, 3);
    Matrix logits_c = Convert(logits, DType::kC128);
    Matrix kl_c(DType::kC128, 1, 4);
    const Matrix scale = Filled(DType::kF64, 1, 4, 0.25);
    const Matrix expected = ComplexStep(logits_c, [&, cap = softcap] {
      Matrix scratch = logits_c;
      Matrix base_c = Convert(base, DType::kC128);
      backend_->Run(ops::KlDivergence{cap, 1, base_c.view(), scratch.view(), kl_c.view()});
      return Contract(scale, kl_c);
    });
    Matrix kl(DType::kF64, 1, 4);
    backend_->Run(ops::KlDivergence{softcap, 0.25f, base.view(), logits.view(), kl.view()});
    ExpectGradient(logits, expected, "logits");
    ExpectWithin(kl, kl_c, Filled(DType::kF64, 1, 4, 1e-14), "kl");
  }
}

}  // namespace
}  // namespace qlora::testing_util

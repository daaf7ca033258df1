// Layers with a state against numbers of tools/make_recurrent_goldens.py, which computes the delta
// rule by chunks and all gradients by differences: the definitions of the ops, and the parts of
// layers that are made of several.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/test_recurrent.h"
#include "base/matrix.h"
#include "test_build.h"

namespace qlora::testing_util {
namespace {

class RecurrentGoldenTest : public testing::Test {
 protected:
  Matrix Read(const char* group, const char* name) const {
    const auto rows = golden_[group][name].get<std::vector<std::vector<double>>>();
    Matrix m(DType::kF64, std::ssize(rows), std::ssize(rows[0]));
    for (std::int64_t r = 0; r < m.rows(); ++r) {
      for (std::int64_t c = 0; c < m.cols(); ++c) m.Set(r, c, rows[r][c]);
    }
    return m;
  }
  // The digits of differences.
  void Expect(const Matrix& m, const char* group, const char* name, double tolerance = 1e-10) {
    ExpectWithin(m, Read(group, name), Filled(DType::kF64, m.rows(), m.cols(), tolerance), name);
  }

  const nlohmann::json golden_ =
      nlohmann::json::parse(std::ifstream(SourceDir() / "tests/golden/recurrent.json"));
  const std::vector<SequenceSpan> spans_ =
      SpansOf(golden_["lengths"].get<std::vector<std::int64_t>>());
  const std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
};

TEST_F(RecurrentGoldenTest, CausalConv) {
  const ConvCase c = {"conv", 3, 4, spans_, Activation::kSilu, true};
  ConvData data;
  data.x = Read("conv", "x");
  data.weight = Read("conv", "weight");
  data.bias = Read("conv", "bias");
  data.dy = Read("conv", "dy");
  data.y = Poisoned(data.x);
  data.dx = Poisoned(data.x);
  data.Forward(*backend_, c, false);
  data.Backward(*backend_, c);
  Expect(data.y, "conv", "y", 1e-14);
  Expect(data.dx, "conv", "d_x");
}

TEST_F(RecurrentGoldenTest, GatedDeltaRule) {
  const auto shape = golden_["shape"].get<std::vector<std::int64_t>>();
  DeltaCase c = {"golden", {shape[0], shape[1], shape[2], shape[3]}, spans_};
  DeltaData data;
  const auto read = [&](const char* name) { return Read("delta_rule", name); };
  data.q = read("q");
  data.k = read("k");
  data.v = read("v");
  data.a = read("a");
  data.b = read("b");
  data.rate = read("rate");
  data.dt_bias = read("dt_bias");
  data.d_o = read("dy");
  for (auto [out, like] : {std::pair{&data.o, &data.v},
                           {&data.dq, &data.q},
                           {&data.dk, &data.k},
                           {&data.dv, &data.v},
                           {&data.da, &data.a},
                           {&data.db, &data.b}}) {
    *out = Poisoned(*like);
  }
  data.Forward(*backend_, c, false);
  Expect(data.o, "delta_rule", "y", 1e-14);
  data.Backward(*backend_, c);
  Expect(data.dq, "delta_rule", "d_q");
  Expect(data.dk, "delta_rule", "d_k");
  Expect(data.dv, "delta_rule", "d_v");
  Expect(data.da, "delta_rule", "d_a");
  Expect(data.db, "delta_rule", "d_b");

  c.spans = SpansOf({data.q.rows()});
  data.state = Read("delta_rule_from_state", "state");
  data.Forward(*backend_, c, true);
  Expect(data.o, "delta_rule_from_state", "y", 1e-13);
  Expect(data.state, "delta_rule_from_state", "after", 1e-13);
}

// The norm of each head, then the gate in place; backward the norm is computed again.
TEST_F(RecurrentGoldenTest, GatedNorm) {
  const Matrix o = Read("gated_norm", "o");
  Matrix z = Read("gated_norm", "z");
  const Matrix weight = Read("gated_norm", "weight");
  const Matrix dy = Read("gated_norm", "dy");
  const auto epsilon = golden_["epsilon"].get<float>();
  Matrix y = Poisoned(o);
  Matrix rstd(DType::kF64, 1, o.rows());
  const ops::RmsNorm norm = {o.view(), weight.view(), epsilon, y.view(), rstd.view()};
  backend_->Run(norm);
  backend_->Run(ops::GatedActivation{Activation::kSilu, z.view(), y.view(), y.view()});
  // epsilon is a float.
  Expect(y, "gated_norm", "y", 1e-9);
  backend_->Run(norm);
  backend_->Run(ops::GatedActivationBackward{Activation::kSilu, dy.view(), z.view(), y.view(),
                                             z.view(), y.view()});
  backend_->Run(
      ops::RmsNormBackward{y.view(), o.view(), weight.view(), rstd.view(), y.view(), Store::kSet});
  Expect(z, "gated_norm", "d_z", 1e-9);
  Expect(y, "gated_norm", "d_o", 1e-9);
}

// y = c * conv(b * x) of thirds of one matrix.
TEST_F(RecurrentGoldenTest, ShortBlock) {
  const auto read = [&](const char* name) { return Read("short_block", name); };
  const Matrix b = read("b"), c = read("c"), x = read("x");
  const std::int64_t D = x.cols();
  Matrix in(DType::kF64, x.rows(), 3 * D);
  Matrix d_in = Poisoned(in);
  for (std::int64_t r = 0; r < in.rows(); ++r) {
    for (std::int64_t i = 0; i < D; ++i) {
      in.Set(r, i, b(r, i));
      in.Set(r, D + i, c(r, i));
      in.Set(r, 2 * D + i, x(r, i));
    }
  }
  const auto third = [&](Matrix& m, std::int64_t i) { return Columns(m.view(), i * D, D); };
  const Matrix weight = read("weight"), bias = read("bias"), dy = read("dy");
  Matrix product = Poisoned(x), h = Poisoned(x), y = Poisoned(x), dh = Poisoned(x);
  constexpr Activation kNone = Activation::kIdentity;
  backend_->Run(ops::GatedActivation{kNone, third(in, 0), third(in, 2), product.view()});
  backend_->Run(
      ops::CausalConv{kNone, spans_, product.view(), weight.view(), bias.view(), h.view()});
  backend_->Run(ops::GatedActivation{kNone, third(in, 1), h.view(), y.view()});
  Expect(y, "short_block", "y", 1e-14);

  backend_->Run(ops::GatedActivationBackward{kNone, dy.view(), third(in, 1), h.view(),
                                             third(d_in, 1), dh.view()});
  Matrix d_product = Poisoned(x);
  backend_->Run(ops::CausalConvBackward{kNone, spans_, dh.view(), product.view(), weight.view(),
                                        bias.view(), d_product.view()});
  backend_->Run(ops::GatedActivationBackward{kNone, d_product.view(), third(in, 0), third(in, 2),
                                             third(d_in, 0), third(d_in, 2)});
  const auto expect = [&](std::int64_t i, const char* name) {
    Matrix part = Poisoned(x);
    backend_->Run(ops::Copy{third(d_in, i), part.view()});
    Expect(part, "short_block", name);
  };
  expect(0, "d_b");
  expect(1, "d_c");
  expect(2, "d_x");
}

}  // namespace
}  // namespace qlora::testing_util

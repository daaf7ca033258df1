// The gradients of the ops of layers with a state against the derivatives of their definitions.
#include <gtest/gtest.h>

#include "backend/test_gradient.h"
#include "backend/test_recurrent.h"

namespace qlora::testing_util {
namespace {

constexpr Precision kDouble = {DType::kF64, DType::kF64};

TEST(RecurrentGradTest, CausalConv) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  using enum Activation;
  const std::vector<ConvCase> cases = {
      {"one_tap", 3, 1, SpansOf({4}), kIdentity},
      {"shorter_than_the_taps", 2, 4, SpansOf({1, 2, 3})},
      {"packed", 3, 4, SpansOf({5, 1, 7}), kSilu, true},
      {"without_activation", 4, 3, SpansOf({9, 2}), kIdentity, true},
      {"out_of_order", 2, 3, {{4, 3, 0}, {0, 4, 1}}},
  };
  std::uint64_t seed = 0;
  for (const ConvCase& c : cases) {
    SCOPED_TRACE(c.name);
    ConvData data = MakeConvData(c, kDouble, ++seed);
    ConvData complex = data.In(DType::kC128);
    data.Backward(*backend, c);
    ExpectGradient(data.dx,
                   ComplexStep(complex.x,
                               [&] {
                                 complex.Forward(*backend, c, false);
                                 return Contract(data.dy, complex.y);
                               }),
                   "dx");
  }
}

TEST(RecurrentGradTest, GatedDeltaRule) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  const std::vector<DeltaCase> cases = {
      {"one_token", {1, 1, 3, 2}, SpansOf({1})},
      {"one_head", {1, 1, 3, 2}, SpansOf({6})},
      {"grouped", {6, 2, 3, 4}, SpansOf({5})},
      {"tiled", {6, 2, 3, 4, true}, SpansOf({5})},
      {"packed", {3, 1, 4, 3}, SpansOf({3, 1, 4})},
      {"out_of_order", {2, 2, 2, 3}, {{4, 3, 0}, {0, 4, 1}}},
  };
  std::uint64_t seed = 40;
  for (const DeltaCase& c : cases) {
    SCOPED_TRACE(c.name);
    DeltaData data = MakeDeltaData(c, kDouble, ++seed);
    DeltaData complex = data.In(DType::kC128);
    const auto loss = [&] {
      complex.Forward(*backend, c, false);
      return Contract(data.d_o, complex.o);
    };
    data.Backward(*backend, c);
    ExpectGradient(data.dq, ComplexStep(complex.q, loss), "dq");
    ExpectGradient(data.dk, ComplexStep(complex.k, loss), "dk");
    ExpectGradient(data.dv, ComplexStep(complex.v, loss), "dv");
    ExpectGradient(data.db, ComplexStep(complex.b, loss), "db");
    // What a token forgets matters where there was one before.
    if (RowsOf(c.spans) > 1) ExpectGradient(data.da, ComplexStep(complex.a, loss), "da");
  }
}

}  // namespace
}  // namespace qlora::testing_util

// Calls of the ops of layers with a state that break their contract, and a workspace that is too
// small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/test_recurrent.h"
#include "qlora/error.h"

namespace qlora::testing_util {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Precision kFloat = {DType::kF32, DType::kF32};

template <typename Call>
void ExpectRefused(const Call& call, const char* op, const char* what) {
  try {
    call();
    FAIL() << op << ": " << what << ": expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRuntime);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(op), HasSubstr(what)));
  }
}

class RecurrentChecksTest : public testing::Test {
 protected:
  // Both ops over these spans, with states.
  void ExpectSpansRefused(const std::vector<SequenceSpan>& spans, const char* what) {
    ConvCase conv = {"conv", 5, 3, SpansOf({3, 4})};
    DeltaCase delta = {"delta", {4, 2, 3, 2}, SpansOf({3, 4})};
    ConvData conv_data = MakeConvData(conv, kFloat, 1);
    DeltaData delta_data = MakeDeltaData(delta, kFloat, 2);
    conv.spans = delta.spans = spans;
    ExpectRefused([&] { conv_data.Forward(*backend_, conv, true); }, "CausalConv", what);
    ExpectRefused([&] { delta_data.Forward(*backend_, delta, true); }, "GatedDeltaRule", what);
  }

  const std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
};

TEST_F(RecurrentChecksTest, EveryRowIsInOneSpan) {
  ExpectSpansRefused({{0, 3, 0}, {2, 5, 1}}, "share rows");
  ExpectSpansRefused({{0, 3, 0}, {4, 3, 1}}, "rows in spans");
  ExpectSpansRefused({{0, 3, 0}, {3, 5, 1}}, "rows of x");
  ExpectSpansRefused({{0, 7, 0}, {7, 0, 1}}, "rows of a span");
}

TEST_F(RecurrentChecksTest, EverySpanHasAStateOfItsOwn) {
  ExpectSpansRefused({{0, 3, 1}, {3, 4, 1}}, "a state for each span");
  ExpectSpansRefused({{0, 3, 0}, {3, 4, 2}}, "number of states");
  ExpectSpansRefused({{0, 3, 0}, {3, 4, -1}}, "state of a span");
}

TEST_F(RecurrentChecksTest, Shapes) {
  ConvCase conv = {"conv", 5, 3, SpansOf({7})};
  ConvData conv_data = MakeConvData(conv, kFloat, 3);
  std::swap(conv_data.y, conv_data.weight);
  ExpectRefused([&] { conv_data.Forward(*backend_, conv, false); }, "CausalConv", "weight");
  conv_data = MakeConvData({"conv", 5, 65, SpansOf({7})}, kFloat, 3);
  ExpectRefused([&] { conv_data.Forward(*backend_, conv, false); }, "CausalConv", "most taps");
  conv_data = MakeConvData(conv, kFloat, 3);
  conv_data.window = Convert(conv_data.window, DType::kBF16);
  ExpectRefused([&] { conv_data.Forward(*backend_, conv, true); }, "CausalConv", "window_inout");

  DeltaCase delta = {"delta", {3, 2, 3, 2}, SpansOf({7})};
  DeltaData delta_data = MakeDeltaData(delta, kFloat, 4);
  ExpectRefused([&] { delta_data.Forward(*backend_, delta, false); }, "GatedDeltaRule",
                "heads modulo key_heads");
  delta = {"delta", {4, 2, 3, 2}, SpansOf({7})};
  delta_data = MakeDeltaData(delta, kFloat, 5);
  delta_data.dk = Matrix(DType::kF32, 7, 5);
  ExpectRefused([&] { delta_data.Backward(*backend_, delta); }, "GatedDeltaRuleBackward", "dk");
  delta_data = MakeDeltaData(delta, kFloat, 5);
  ExpectRefused(
      [&] {
        backend_->Run(ops::GatedDeltaRuleBackward{
            delta.shape, delta.spans, delta_data.d_o.view(), delta_data.q.view(),
            delta_data.k.view(), delta_data.v.view(), delta_data.a.view(), delta_data.b.view(),
            delta_data.rate.view(), delta_data.dt_bias.view(), delta_data.q.view(),
            delta_data.dk.view(), delta_data.dv.view(), delta_data.da.view(),
            delta_data.db.view()});
      },
      "GatedDeltaRuleBackward", "no overlap with q");
}

// Longer sequences need room for more states; the forward pass needs none of it.
TEST(RecurrentWorkspace, IsPlannedFromTheLimits) {
  Context context(1);
  const std::unique_ptr<Backend> backend = MakeCpuBackend(context, DType::kF32);
  // The states of nine chunks take more than any product of so few rows.
  const DeltaCase short_case = {"short", {4, 2, 64, 64}, SpansOf({64})};
  const DeltaCase long_case = {"long", {4, 2, 64, 64}, SpansOf({9 * 64})};
  EXPECT_GE(backend->WorkspaceBytes(LimitsOf(long_case)),
            backend->WorkspaceBytes(LimitsOf(short_case)) + 8 * 64 * 64 * sizeof(float));
  BackendLimits limits = LimitsOf(short_case);
  limits.gradient_rows = limits.gradient_length = 0;
  EXPECT_LT(backend->WorkspaceBytes(limits), backend->WorkspaceBytes(LimitsOf(short_case)));

  DeltaData data = MakeDeltaData(long_case, kFloat, 6);
  ExpectRefused([&] { data.Forward(*backend, long_case, false); }, "workspace", "Reserve");
  backend->Reserve(LimitsOf(short_case));
  data.Forward(*backend, long_case, false);
  ExpectRefused([&] { data.Backward(*backend, long_case); }, "workspace", "Reserve");
  backend->Reserve(LimitsOf(long_case));
  data.Backward(*backend, long_case);
}

}  // namespace
}  // namespace qlora::testing_util

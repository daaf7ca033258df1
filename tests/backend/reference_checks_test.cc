// Calls that break the op contract are refused with a message that names op and operand, and calls
// that only look unusual are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/test_attention.h"
#include "backend/test_linear.h"
#include "base/arena.h"
#include "base/matrix.h"
#include "qlora/error.h"

namespace qlora::testing_util {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

class ChecksTest : public testing::Test {
 protected:
  template <typename Call>
  void ExpectRefused(const Call& call, const char* op, const char* operand) {
    try {
      call();
      FAIL() << op << ": " << operand << ": expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRuntime);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(std::string(op) + ": "), HasSubstr(operand),
                                      HasSubstr("expected"), HasSubstr("found")));
    }
  }

  const std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
  Random random_{1};
  Matrix x_ = random_.Normal(DType::kF32, 4, 6, 1);
  Matrix y_ = random_.Normal(DType::kF32, 4, 6, 1);
  Matrix z_ = random_.Normal(DType::kF32, 4, 6, 1);
  Matrix vector_ = random_.Normal(DType::kF32, 1, 6, 1);
  Matrix per_row_ = random_.Normal(DType::kF32, 1, 4, 1);
};

TEST_F(ChecksTest, Shapes) {
  Matrix narrow(DType::kF32, 4, 5);
  const Ids ids = {0, 1, 2, 3};
  ExpectRefused([&] { backend_->Run(ops::Add{narrow.view(), x_.view()}); }, "Add", "y_acc");
  ExpectRefused([&] { backend_->Run(ops::Embed{Ids{1}, x_.view(), 1, y_.view()}); }, "Embed", "y");
  ExpectRefused(
      [&] {
        backend_->Run(ops::RmsNorm{x_.view(), per_row_.view(), 0, y_.view(), per_row_.view()});
      },
      "RmsNorm", "weight");
  ExpectRefused(
      [&] {
        backend_->Run(ops::RmsNorm{x_.view(), vector_.view(), 0, y_.view(), vector_.view()});
      },
      "RmsNorm", "rstd");
  ExpectRefused(
      [&] {
        backend_->Run(ops::RmsNormBackward{narrow.view(), x_.view(), vector_.view(),
                                           per_row_.view(), y_.view(), Store::kSet});
      },
      "RmsNormBackward", "dy");
  ExpectRefused(
      [&] {
        backend_->Run(ops::GatedActivation{Activation::kSilu, x_.view(), narrow.view(), y_.view()});
      },
      "GatedActivation", "up");
  ExpectRefused(
      [&] {
        backend_->Run(ops::CrossEntropy{ids, 0, {}, x_.view(), vector_.view()});
      },
      "CrossEntropy", "logprob");
  ExpectRefused(
      [&] {
        backend_->Run(ops::KlDivergence{0, 1, narrow.view(), x_.view(), per_row_.view()});
      },
      "KlDivergence", "logits_inout");
  ExpectRefused(
      [&] {
        backend_->Run(ops::KlDivergence{0, 1, y_.view(), x_.view(), vector_.view()});
      },
      "KlDivergence", "kl");
  Matrix other_vector = vector_;
  ExpectRefused(
      [&] {
        backend_->Run(
            ops::Update{{}, vector_.view(), other_vector.view(), {per_row_.view(), {}}, {}});
      },
      "Update", "m_inout");
  ExpectRefused([&] { SumOfSquaresOf(*backend_, x_.view()); }, "SumOfSquares", "x");
}

TEST_F(ChecksTest, GatesOfRows) {
  Matrix gate(DType::kF32, 4, 1);
  ExpectRefused(
      [&] {
        backend_->Run(ops::GateRows{x_.view(), per_row_.view(), y_.view()});
      },
      "GateRows", "gate");
  const auto backward = [&](const MatrixView& d_gate, const MatrixView& dx) {
    backend_->Run(ops::GateRowsBackward{x_.view(), y_.view(), gate.view(), d_gate, dx});
  };
  backward(gate.view(), x_.view());  // in place
  ExpectRefused([&] { backward(vector_.view(), z_.view()); }, "GateRowsBackward", "d_gate");
  ExpectRefused([&] { backward(gate.view(), y_.view()); }, "GateRowsBackward", "dx");
}

TEST_F(ChecksTest, RangesOfExperts) {
  const LinearView linear{z_.view(), {}, {}};
  const std::vector<LinearView> linears = {linear, linear};
  Matrix y(DType::kF32, 4, 4);
  const LinearOutput out{y.view(), {}};
  const auto run = [&](const Ids& begin) {
    backend_->Run(ops::ExpertLinear{linears, begin, x_.view(), {&out, 1}});
  };
  run({0, 1, 4});
  ExpectRefused([&] { run({0, 1, 5}); }, "ExpertLinear", "last of begin");
  ExpectRefused([&] { run({1, 2, 4}); }, "ExpertLinear", "first of begin");
  ExpectRefused([&] { run({0, 5, 4}); }, "ExpertLinear", "begin");
  ExpectRefused([&] { run({0, 4}); }, "ExpertLinear", "linears");
  ExpectRefused([&] { run({}); }, "ExpertLinear", "size of begin");
}

TEST_F(ChecksTest, StorageOfQuantizedWeights) {
  Arena storage(StorageBytes(4, 6, {}));
  Carver carver(storage);
  const MatrixView room = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(storage.bytes()));
  EXPECT_EQ(backend_->Quantize(x_.view(), {}, room).rows, 4);
  ExpectRefused([&] { backend_->Quantize(x_.view(), {}, Columns(room, 0, room.cols - 1)); },
                "Quantize", "storage");
  ExpectRefused(
      [&] {
        backend_->Quantize(x_.view(), {}, {storage.data(), DType::kI8, 1, room.cols, room.cols});
      },
      "Quantize", "U8");
}

TEST_F(ChecksTest, StridesPointersAndTypes) {
  MatrixView bad_stride = x_.view();
  bad_stride.stride = 5;
  ExpectRefused([&] { backend_->Run(ops::Add{bad_stride, y_.view()}); }, "Add", "stride");
  MatrixView no_data = x_.view();
  no_data.data = nullptr;
  ExpectRefused([&] { backend_->Run(ops::Add{no_data, y_.view()}); }, "Add", "null");
  Matrix half(DType::kF16, 4, 6);
  ExpectRefused([&] { backend_->Run(ops::Add{half.view(), y_.view()}); }, "Add", "F16");
  Matrix wide(DType::kF64, 4, 6);
  ExpectRefused([&] { backend_->Run(ops::Add{x_.view(), wide.view()}); }, "Add", "F64");
  Matrix rounded(DType::kBF16, 1, 6);
  ExpectRefused([&] { SumOfSquaresOf(*backend_, rounded.view()); }, "SumOfSquares", "BF16");
}

TEST_F(ChecksTest, Indices) {
  EXPECT_NO_THROW(CheckIndices("ids", Ids{0, 3, 2}, 4));
  ExpectRefused([] { CheckIndices("ids", Ids{0, 1, 4, 0}, 4); }, "ids", "4 at index 2");
  ExpectRefused([] { CheckIndices("rows", Ids{0, 1, -1, 0}, 4); }, "rows", "-1 at index 2");
  Matrix too_wide = random_.Normal(DType::kF32, 4, 2, 1);
  ExpectRefused(
      [&] {
        backend_->Run(
            ops::Rope{Ids{0, 1, 2, 3}, {too_wide.view(), too_wide.view()}, 2, false, x_.view()});
      },
      "Rope", "head_dim");
}

TEST_F(ChecksTest, OutputsThatOverlapInputs) {
  ExpectRefused([&] { backend_->Run(ops::Add{x_.view(), x_.view()}); }, "Add", "y_acc");
  ExpectRefused(
      [&] {
        backend_->Run(ops::RmsNorm{x_.view(), vector_.view(), 0, x_.view(), per_row_.view()});
      },
      "RmsNorm", "overlap");
  // Allowed: the gate itself. Not allowed: the gate shifted by one row.
  Matrix tall = random_.Normal(DType::kF32, 5, 6, 1);
  const auto activate = [&](const MatrixView& y) {
    backend_->Run(ops::GatedActivation{Activation::kSilu, Rows(tall.view(), 0, 4), x_.view(), y});
  };
  EXPECT_NO_THROW(activate(Rows(tall.view(), 0, 4)));
  ExpectRefused([&] { activate(Rows(tall.view(), 1, 4)); }, "GatedActivation", "gate");
}

TEST_F(ChecksTest, ColumnsOfOneMatrixDoNotOverlap) {
  Matrix fused = random_.Normal(DType::kF32, 4, 12, 1);
  const auto columns = [&](std::int64_t begin, std::int64_t count) {
    MatrixView view = fused.view();
    view.data = view.Row<float>(0) + begin;
    view.cols = count;
    return view;
  };
  EXPECT_NO_THROW(backend_->Run(ops::Add{columns(0, 6), columns(6, 6)}));
  EXPECT_NO_THROW(backend_->Run(ops::Add{columns(6, 6), columns(0, 6)}));
  EXPECT_NO_THROW(backend_->Run(ops::Add{Rows(columns(6, 6), 1, 2), Rows(columns(0, 6), 0, 2)}));
  EXPECT_NO_THROW(backend_->Run(ops::Add{Rows(columns(0, 6), 0, 2), Rows(columns(6, 6), 1, 2)}));
  ExpectRefused([&] { backend_->Run(ops::Add{columns(0, 6), columns(5, 6)}); }, "Add", "overlap");
  ExpectRefused([&] { backend_->Run(ops::Add{columns(5, 6), columns(0, 6)}); }, "Add", "overlap");
  ExpectRefused(
      [&] {
        backend_->Run(ops::Add{Rows(columns(5, 6), 1, 2), Rows(columns(0, 6), 0, 2)});
      },
      "Add", "overlap");
}

class LinearChecksTest : public ChecksTest {
 protected:
  LinearGroup Group(WeightKind weight = WeightKind::kNf4, std::int64_t rank = 3,
                    std::int64_t rows = 2) {
    const LinearCase c = {"", rows, 64, {8, 4}, weight, rank, true};
    return MakeLinearGroup(c, {DType::kF32, DType::kF32}, DType::kF32, 5);
  }
  void ExpectForwardRefused(LinearGroup& group, const char* operand) {
    ExpectRefused([&] { group.Forward(*backend_, Store::kSet); }, "Linear", operand);
  }
  void ExpectBackwardRefused(LinearGroup& group, const char* operand) {
    ExpectRefused([&] { group.Backward(*backend_, Store::kSet); }, "LinearBackward", operand);
  }
};

TEST_F(LinearChecksTest, NamesTheLinearOfAGroup) {
  LinearGroup group = Group();
  group.bias[1] = Matrix(DType::kF32, 1, 5);
  ExpectForwardRefused(group, "bias of linear 1");
  group = Group();
  group.y[1] = Matrix(DType::kF32, 2, 8);
  ExpectForwardRefused(group, "y of linear 1");
  group = Group();
  group.b[0] = Matrix(DType::kF32, 8, 2);
  ExpectForwardRefused(group, "lora.b of linear 0");
}

TEST_F(LinearChecksTest, AdapterOperandsExistWithAnAdapterOnly) {
  LinearGroup group = Group();
  group.u[0] = Matrix();
  ExpectForwardRefused(group, "u of linear 0");
  group = Group(WeightKind::kBF16, 0);
  group.u[1] = Matrix(DType::kF32, 2, 3);
  ExpectForwardRefused(group, "u of linear 1");
  group = Group();
  group.da[1] = Matrix(DType::kF32, 3, 63);
  ExpectBackwardRefused(group, "da_acc of linear 1");
  group = Group();
  group.db[1] = Matrix();
  ExpectBackwardRefused(group, "db_acc of linear 1");
  group = Group();
  group.dropout = 1;
  ExpectForwardRefused(group, "lora.dropout");
}

TEST_F(LinearChecksTest, Weights) {
  LinearGroup group = Group();
  std::vector<LinearView> views = group.Views();
  const LinearOutput outputs[] = {{group.y[0].view(), group.u[0].view()},
                                  {group.y[1].view(), group.u[1].view()}};
  const auto call = [&] {
    backend_->Run(ops::Linear{views, group.x.view(), outputs, Store::kSet});
  };
  views[1].weight.quantized.scales = nullptr;
  ExpectRefused(call, "Linear", "weight of linear 1");
  views = group.Views();
  views[0].weight.quantized.scale_type = ScaleType::kDoubleBnb;
  ExpectRefused(call, "Linear", "nested scales");
  views = group.Views();
  views[0].weight.quantized.cols = 32;
  ExpectRefused(call, "Linear", "columns of weight");
  views.pop_back();
  ExpectRefused(call, "Linear", "number of outputs");
}

TEST_F(LinearChecksTest, Bases) {
  LinearGroup group = Group();
  std::vector<LinearOutput> outputs = {{group.y[0].view(), group.u[0].view()},
                                       {group.y[1].view(), group.u[1].view()}};
  const auto forward = [&](Store store) {
    backend_->Run(ops::Linear{group.Views(), group.x.view(), outputs, store});
  };
  forward(Store::kSet);
  outputs[1].base = outputs[1].y;
  ExpectRefused([&] { forward(Store::kAdd); }, "Linear", "no overlap with base");
  Matrix base = group.y[1];
  outputs[1].base = base.view();
  ExpectRefused([&] { forward(Store::kSet); }, "Linear", "base of linear 1");
  forward(Store::kAdd);
  outputs[1].base.cols -= 1;
  ExpectRefused([&] { forward(Store::kAdd); }, "Linear", "base of linear 1");
}

TEST_F(LinearChecksTest, NoRowsIsNoWork) {
  LinearGroup group = Group(WeightKind::kNf4, 3, 0);
  const Matrix da = group.da[0];
  EXPECT_NO_THROW(group.Forward(*backend_, Store::kSet));
  EXPECT_NO_THROW(group.Backward(*backend_, Store::kSet));
  ExpectEqual(group.da[0], da, "da");
}

class AttentionChecksTest : public ChecksTest {
 protected:
  AttentionData Data(const AttentionCase& c) {
    return MakeAttentionData(c, {DType::kF32, DType::kF32}, DType::kF32, 5);
  }
  AttentionCase case_ = {"", {4, 2, 8, 1.0f}, Packed({3, 4})};
};

TEST_F(AttentionChecksTest, Heads) {
  AttentionData data = Data(case_);
  case_.shape.kv_heads = 3;
  ExpectRefused([&] { data.Forward(*backend_, case_); }, "Attention", "heads modulo kv_heads");
  case_.shape.kv_heads = 4;
  ExpectRefused([&] { data.Forward(*backend_, case_); }, "Attention", "k: ");
}

TEST_F(AttentionChecksTest, SpansOutsideOfTheRows) {
  AttentionData data = Data(case_);
  case_.spans[1].q_begin = 4;
  ExpectRefused([&] { data.Forward(*backend_, case_); }, "Attention", "rows of q");
  case_.spans = {{0, 4, 0, 3}};
  ExpectRefused([&] { data.Forward(*backend_, case_); }, "Attention", "kv_rows of a span");
  case_.spans = {{0, 1, 4, 4}};
  ExpectRefused([&] { data.Forward(*backend_, case_); }, "Attention", "rows of k");
}

TEST_F(AttentionChecksTest, BackwardNeedsEveryRowOnce) {
  AttentionData data = Data(case_);
  case_.spans = {{0, 3, 0, 3}, {2, 4, 3, 4}};
  ExpectRefused([&] { data.Backward(*backend_, case_); }, "AttentionBackward", "share rows");
  case_.spans = {{0, 3, 0, 3}, {3, 3, 3, 4}};
  ExpectRefused([&] { data.Backward(*backend_, case_); }, "AttentionBackward", "rows of q");
  case_.spans = {{0, 3, 0, 3}, {3, 4, 3, 4}};
  data.dk = data.dv = Matrix(DType::kF32, 7, 16);
  MatrixView dv = data.dk.view();
  ExpectRefused(
      [&] {
        backend_->Run(ops::AttentionBackward{
            case_.shape, case_.spans, data.d_o.view(), data.q.view(), data.k.view(), data.v.view(),
            data.o.view(), data.lse.view(), data.dq.view(), data.dk.view(), dv});
      },
      "AttentionBackward", "dv");
}

}  // namespace
}  // namespace qlora::testing_util

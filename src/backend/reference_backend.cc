// The reference backend: converts views to typed matrices and runs the definitions of the ops. It
// is made to be read and to be compared with; it widens weights into temporary storage on each
// call, which no other backend may do.
#include <vector>

#include "backend/backend.h"
#include "backend/reference_attention.h"
#include "backend/reference_elementwise.h"
#include "backend/reference_experts.h"
#include "backend/reference_linear.h"
#include "backend/reference_optimizer.h"
#include "base/check.h"

namespace qlora {
namespace {

using reference::LinearOf;
using reference::Mat;

// Calls body.operator()<T>() with the T of dtype.
template <typename Body>
void Dispatch(const char* op, DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF64:
      return body.template operator()<double>();
    case DType::kC128:
      return body.template operator()<std::complex<double>>();
    default:
      ThrowRuntime("{}: expected F32, F64 or C128 operands in the reference backend, found {}", op,
                   NameOf(dtype));
  }
}

void CheckDType(DType expected, DType found) {
  if (expected != found) {
    ThrowRuntime("reference backend: expected all operands of a call to be {}, found {}",
                 NameOf(expected), NameOf(found));
  }
}

template <typename T>
Mat<T> Typed(const MatrixView& m) {
  if (!m.empty()) CheckDType(kDTypeOf<T>, m.dtype);
  return {static_cast<T*>(m.data), m.rows, m.cols, m.stride};
}

template <typename T>
Mat<const T> TypedConst(const ConstMatrixView& m) {
  if (!m.empty()) CheckDType(kDTypeOf<T>, m.dtype);
  return {static_cast<const T*>(m.data), m.rows, m.cols, m.stride};
}

// Element (r, c) of a weight or table: float32, float16, bfloat16 or T.
template <typename T>
T Widened(const ConstMatrixView& m, std::int64_t r, std::int64_t c) {
  switch (m.dtype) {
    case DType::kF32:
      return static_cast<T>(m.Row<float>(r)[c]);
    case DType::kF16:
      return static_cast<T>(ToFloat(m.Row<Float16>(r)[c]));
    case DType::kBF16:
      return static_cast<T>(ToFloat(m.Row<BFloat16>(r)[c]));
    default:
      CheckDType(kDTypeOf<T>, m.dtype);
      return m.Row<T>(r)[c];
  }
}

// All (rows, cols) values of a weight. A 4-bit value is code * scale, computed in float32.
template <typename T>
std::vector<T> Widened(const WeightView& weight) {
  std::vector<T> values;
  values.reserve(weight.rows() * weight.cols());
  if (weight.is_dense()) {
    for (std::int64_t r = 0; r < weight.rows(); ++r) {
      for (std::int64_t c = 0; c < weight.cols(); ++c) {
        values.push_back(Widened<T>(weight.dense, r, c));
      }
    }
    return values;
  }
  const QuantizedView& q = weight.quantized;
  std::vector<float> scales(q.blocks());
  LoadScales(q, 0, q.blocks(), scales.data());
  for (std::int64_t i = 0; i < q.rows * q.cols; ++i) {
    const int nibble = i % 2 == 0 ? q.packed[i / 2] >> 4 : q.packed[i / 2] & 15;
    values.push_back(static_cast<T>(q.code[nibble] * scales[i / q.block_size]));
  }
  return values;
}

template <typename T>
LinearOf<T> Typed(const LinearView& linear, const std::vector<T>& weight) {
  const std::int64_t rows = linear.weight.rows();
  const std::int64_t cols = linear.weight.cols();
  return {.weight = {weight.data(), rows, cols, cols},
          .bias = TypedConst<T>(linear.bias),
          .a = TypedConst<T>(linear.lora.a),
          .b = TypedConst<T>(linear.lora.b),
          .scale = static_cast<T>(linear.lora.scale),
          .dropout = linear.lora.dropout,
          .dropout_key = linear.lora.dropout_key};
}

template <typename T>
void CopyRow(Mat<const T> x, std::int64_t from, Mat<T> y, std::int64_t to, Store store) {
  for (std::int64_t d = 0; d < x.cols; ++d) reference::Put(store, x(from, d), y(to, d));
}

class ReferenceBackend : public Backend {
 public:
  std::size_t WorkspaceBytes(const BackendLimits&) const override { return 0; }
  void Reserve(const BackendLimits&) override {}

 private:
  void DoEmbed(std::span<const std::int32_t> ids, ConstMatrixView table, float scale,
               MatrixView y) override {
    Dispatch("Embed", y.dtype, [&]<typename T>() {
      const Mat<T> out = Typed<T>(y);
      for (std::int64_t n = 0; n < out.rows; ++n) {
        for (std::int64_t d = 0; d < out.cols; ++d) {
          out(n, d) = static_cast<T>(scale) * Widened<T>(table, ids[n], d);
        }
      }
    });
  }

  void DoRmsNorm(ConstMatrixView x, ConstMatrixView weight, float epsilon, MatrixView y,
                 MatrixView rstd) override {
    Dispatch("RmsNorm", x.dtype, [&]<typename T>() {
      reference::RmsNorm<T>(TypedConst<T>(x), TypedConst<T>(weight), static_cast<T>(epsilon),
                            Typed<T>(y), Typed<T>(rstd));
    });
  }

  void DoRmsNormBackward(ConstMatrixView dy, ConstMatrixView x, ConstMatrixView weight,
                         ConstMatrixView rstd, MatrixView dx, Store store) override {
    Dispatch("RmsNormBackward", x.dtype, [&]<typename T>() {
      reference::RmsNormBackward<T>(TypedConst<T>(dy), TypedConst<T>(x), TypedConst<T>(weight),
                                    TypedConst<T>(rstd), Typed<T>(dx), store);
    });
  }

  void DoLinear(std::span<const LinearView> linears, ConstMatrixView x,
                std::span<const LinearOutput> outputs, Store store) override {
    Dispatch("Linear", x.dtype, [&]<typename T>() {
      for (std::size_t l = 0; l < linears.size(); ++l) {
        const std::vector<T> weight = Widened<T>(linears[l].weight);
        reference::Linear<T>(Typed<T>(linears[l], weight), TypedConst<T>(x), Typed<T>(outputs[l].y),
                             Typed<T>(outputs[l].u), store);
      }
    });
  }

  void DoLinearBackward(std::span<const LinearView> linears, ConstMatrixView x,
                        std::span<const LinearGradient> gradients, MatrixView dx,
                        Store store) override {
    Dispatch("LinearBackward", x.dtype, [&]<typename T>() {
      for (std::size_t l = 0; l < linears.size(); ++l) {
        const std::vector<T> weight = Widened<T>(linears[l].weight);
        const LinearOf<T> linear = Typed<T>(linears[l], weight);
        std::vector<T> du(linear.a.rows);
        reference::LinearBackward<T>(linear, TypedConst<T>(x), TypedConst<T>(gradients[l].dy),
                                     TypedConst<T>(gradients[l].u), Typed<T>(gradients[l].da_acc),
                                     Typed<T>(gradients[l].db_acc),
                                     Mat<T>{du.data(), 1, linear.a.rows, linear.a.rows},
                                     Typed<T>(dx), l == 0 ? store : Store::kAdd);
      }
    });
  }

  void DoRope(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
              bool inverse, MatrixView x_inout) override {
    Dispatch("Rope", x_inout.dtype, [&]<typename T>() {
      reference::Rope<T>(positions, TypedConst<T>(table.cos), TypedConst<T>(table.sin), heads,
                         inverse, Typed<T>(x_inout));
    });
  }

  void DoAttention(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                   ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, MatrixView o,
                   MatrixView lse) override {
    Dispatch("Attention", q.dtype, [&]<typename T>() {
      for (const AttentionSpan& span : spans) {
        reference::Attention<T>(shape, span, TypedConst<T>(q), TypedConst<T>(k), TypedConst<T>(v),
                                Typed<T>(o), Typed<T>(lse));
      }
    });
  }

  void DoAttentionBackward(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                           ConstMatrixView d_o, ConstMatrixView q, ConstMatrixView k,
                           ConstMatrixView v, ConstMatrixView o, ConstMatrixView lse, MatrixView dq,
                           MatrixView dk, MatrixView dv) override {
    Dispatch("AttentionBackward", q.dtype, [&]<typename T>() {
      for (const AttentionSpan& span : spans) {
        reference::AttentionBackward<T>(
            shape, span, TypedConst<T>(d_o), TypedConst<T>(q), TypedConst<T>(k), TypedConst<T>(v),
            TypedConst<T>(o), TypedConst<T>(lse), Typed<T>(dq), Typed<T>(dk), Typed<T>(dv));
      }
    });
  }

  void DoGatedActivation(Activation activation, ConstMatrixView gate, ConstMatrixView up,
                         MatrixView y) override {
    Dispatch("GatedActivation", y.dtype, [&]<typename T>() {
      reference::GatedActivation<T>(activation, TypedConst<T>(gate), TypedConst<T>(up),
                                    Typed<T>(y));
    });
  }

  void DoGatedActivationBackward(Activation activation, ConstMatrixView dy, ConstMatrixView gate,
                                 ConstMatrixView up, MatrixView d_gate, MatrixView d_up) override {
    Dispatch("GatedActivationBackward", dy.dtype, [&]<typename T>() {
      reference::GatedActivationBackward<T>(activation, TypedConst<T>(dy), TypedConst<T>(gate),
                                            TypedConst<T>(up), Typed<T>(d_gate), Typed<T>(d_up));
    });
  }

  void DoCrossEntropy(std::span<const std::int32_t> targets, float softcap, double gradient_scale,
                      MatrixView logits_inout, MatrixView row_loss, MatrixView row_hit) override {
    Dispatch("CrossEntropy", logits_inout.dtype, [&]<typename T>() {
      reference::CrossEntropy<T>(targets, static_cast<T>(softcap), static_cast<T>(gradient_scale),
                                 Typed<T>(logits_inout), Typed<T>(row_loss), Typed<T>(row_hit));
    });
  }

  void DoAdd(ConstMatrixView x, MatrixView y_acc) override {
    Dispatch("Add", x.dtype, [&]<typename T>() {
      for (std::int64_t n = 0; n < x.rows; ++n) {
        CopyRow<T>(TypedConst<T>(x), n, Typed<T>(y_acc), n, Store::kAdd);
      }
    });
  }

  void DoGatherRows(ConstMatrixView x, std::span<const std::int32_t> rows, MatrixView y) override {
    Dispatch("GatherRows", x.dtype, [&]<typename T>() {
      for (std::int64_t n = 0; n < y.rows; ++n) {
        CopyRow<T>(TypedConst<T>(x), rows[n], Typed<T>(y), n, Store::kSet);
      }
    });
  }

  void DoScatterAddRows(ConstMatrixView x, std::span<const std::int32_t> rows,
                        MatrixView y_acc) override {
    Dispatch("ScatterAddRows", x.dtype, [&]<typename T>() {
      for (std::int64_t n = 0; n < x.rows; ++n) {
        CopyRow<T>(TypedConst<T>(x), n, Typed<T>(y_acc), rows[n], Store::kAdd);
      }
    });
  }

  void DoSelectExperts(ConstMatrixView logits, bool normalize, std::span<std::int32_t> experts,
                       MatrixView weights) override {
    Dispatch("SelectExperts", logits.dtype, [&]<typename T>() {
      reference::SelectExperts<T>(TypedConst<T>(logits), normalize, experts, Typed<T>(weights));
    });
  }

  void DoSelectExpertsBackward(ConstMatrixView d_weights, std::span<const std::int32_t> experts,
                               ConstMatrixView weights, bool normalize,
                               MatrixView logits_inout) override {
    Dispatch("SelectExpertsBackward", logits_inout.dtype, [&]<typename T>() {
      reference::SelectExpertsBackward<T>(TypedConst<T>(d_weights), experts, TypedConst<T>(weights),
                                          normalize, Typed<T>(logits_inout));
    });
  }

  void DoScaleRows(ConstMatrixView x, ConstMatrixView scale, MatrixView y) override {
    Dispatch("ScaleRows", x.dtype, [&]<typename T>() {
      reference::ScaleRows<T>(TypedConst<T>(x), TypedConst<T>(scale), Typed<T>(y));
    });
  }

  void DoRowDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) override {
    Dispatch("RowDots", x.dtype, [&]<typename T>() {
      reference::RowDots<T>(TypedConst<T>(x), TypedConst<T>(y), Typed<T>(dots));
    });
  }

  void DoAddNoise(RandomKey key, ConstMatrixView magnitude, MatrixView y_acc) override {
    Dispatch("AddNoise", y_acc.dtype, [&]<typename T>() {
      reference::AddNoise<T>(key, TypedConst<T>(magnitude), Typed<T>(y_acc));
    });
  }

  void DoWeightGradient(ConstMatrixView dy, ConstMatrixView x, MatrixView dw_acc) override {
    Dispatch("WeightGradient", dy.dtype, [&]<typename T>() {
      reference::WeightGradient<T>(TypedConst<T>(dy), TypedConst<T>(x), Typed<T>(dw_acc));
    });
  }

  void DoRowNorms(const WeightView& weight, const LoraView& lora, MatrixView norm,
                  MatrixView inverse) override {
    Dispatch("RowNorms", inverse.dtype, [&]<typename T>() {
      const std::vector<T> values = Widened<T>(weight);
      reference::RowNorms<T>(Typed<T>({weight, {}, lora}, values), Typed<T>(norm),
                             Typed<T>(inverse));
    });
  }

  void DoScaleColumns(ConstMatrixView x, ConstMatrixView gain, ConstMatrixView bias, MatrixView y,
                      Store store) override {
    Dispatch("ScaleColumns", x.dtype, [&]<typename T>() {
      reference::ScaleColumns<T>(TypedConst<T>(x), TypedConst<T>(gain), TypedConst<T>(bias),
                                 Typed<T>(y), store);
    });
  }

  void DoColumnDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) override {
    Dispatch("ColumnDots", x.dtype, [&]<typename T>() {
      reference::ColumnDots<T>(TypedConst<T>(x), TypedConst<T>(y), Typed<T>(dots));
    });
  }

  void DoUpdate(const UpdateArgs& args, ConstMatrixView gradient, MatrixView param_inout,
                const Moment& m_inout, const Moment& v_inout) override {
    Dispatch("Update", gradient.dtype, [&]<typename T>() {
      reference::MomentOf<T> m(m_inout, gradient.cols, DynamicMap::Signed());
      reference::MomentOf<T> v(v_inout, gradient.cols, DynamicMap::Unsigned());
      reference::Update<T>(args, TypedConst<T>(gradient), Typed<T>(param_inout), m.values(),
                           v.values());
      m.Store();
      v.Store();
    });
  }

  // The sum of x^2 (of its real part, where x is complex: the result is a real number).
  double DoSumOfSquares(ConstMatrixView x) override {
    double sum = 0;
    Dispatch("SumOfSquares", x.dtype, [&]<typename T>() {
      const Mat<const T> m = TypedConst<T>(x);
      for (std::int64_t i = 0; i < m.cols; ++i) {
        const auto value = static_cast<double>(std::real(m(0, i)));
        sum += value * value;
      }
    });
    return sum;
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace qlora

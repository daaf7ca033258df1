// The reference backend: converts views to typed matrices (views.h) and runs the
// definitions of the ops. It is made to be read and to be compared with.
#include "backend/backend.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/reference/attention.h"
#include "backend/reference/elementwise.h"
#include "backend/reference/experts.h"
#include "backend/reference/linear.h"
#include "backend/reference/linear_ops.h"
#include "backend/reference/optimizer.h"
#include "backend/reference/recurrent.h"
#include "backend/reference/views.h"
#include "base/check.h"

namespace qlora {
namespace {

using reference::CopyRow;
using reference::Dispatch;
using reference::Indices;
using reference::Mat;
using reference::Typed;
using reference::TypedConst;
using reference::Widened;

// ---- Embeddings and norms. From here on there is one function for each op, by the statement of
// ops.h; CheckOp has tested shapes and overlaps.

void Run(const ops::Embed& op) {
  Dispatch(op.kName, op.y.dtype, [&]<typename T>() {
    const Mat<T> y = Typed<T>(op.y);
    const std::vector<T> table = Widened<T>(op.table);
    for (std::int64_t n = 0; n < y.rows; ++n) {
      for (std::int64_t d = 0; d < y.cols; ++d) {
        y(n, d) = static_cast<T>(op.scale) * table[op.ids.data[n] * y.cols + d];
      }
    }
  });
}

void Run(const ops::EmbedBackward& op) {
  Dispatch(op.kName, op.dy.dtype, [&]<typename T>() {
    const Mat<const T> dy = TypedConst<T>(op.dy);
    const Mat<T> d_table = Typed<T>(op.d_table_acc);
    for (std::int64_t n = 0; n < dy.rows; ++n) {
      for (std::int64_t d = 0; d < dy.cols; ++d) {
        // A token that occurs several times adds to its row once for each time, in the order of n.
        d_table(op.ids.data[n], d) += static_cast<T>(op.scale) * dy(n, d);
      }
    }
  });
}

void Run(const ops::RmsNorm& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::RmsNorm<T>(TypedConst<T>(op.x), TypedConst<T>(op.weight), static_cast<T>(op.epsilon),
                          Typed<T>(op.y), Typed<T>(op.rstd));
  });
}

void Run(const ops::RmsNormBackward& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::RmsNormBackward<T>(TypedConst<T>(op.dy), TypedConst<T>(op.x),
                                  TypedConst<T>(op.weight), TypedConst<T>(op.rstd), Typed<T>(op.dx),
                                  op.store);
  });
}

// ---- Linears are in linear_ops.h.

// ---- Attention.

void Run(const ops::Rope& op) {
  Dispatch(op.kName, op.x_inout.dtype, [&]<typename T>() {
    reference::Rope<T>(Indices(op.positions), TypedConst<T>(op.table.cos),
                       TypedConst<T>(op.table.sin), op.table.interleaved, op.heads, op.inverse,
                       Typed<T>(op.x_inout));
  });
}

void Run(const ops::Attention& op) {
  Dispatch(op.kName, op.q.dtype, [&]<typename T>() {
    for (const AttentionSpan& span : op.spans) {
      reference::Attention<T>(op.shape, span, TypedConst<T>(op.q), TypedConst<T>(op.k),
                              TypedConst<T>(op.v), Typed<T>(op.o), Typed<T>(op.lse));
    }
  });
}

void Run(const ops::AttentionBackward& op) {
  Dispatch(op.kName, op.q.dtype, [&]<typename T>() {
    for (const AttentionSpan& span : op.spans) {
      reference::AttentionBackward<T>(op.shape, span, TypedConst<T>(op.d_o), TypedConst<T>(op.q),
                                      TypedConst<T>(op.k), TypedConst<T>(op.v), TypedConst<T>(op.o),
                                      TypedConst<T>(op.lse), Typed<T>(op.dq), Typed<T>(op.dk),
                                      Typed<T>(op.dv));
    }
  });
}

void Run(const ops::AttentionSinks& op) {
  Dispatch(op.kName, op.lse_inout.dtype, [&]<typename T>() {
    reference::AttentionSinks<T>(TypedConst<T>(op.sinks), Typed<T>(op.lse_inout),
                                 Typed<T>(op.o_inout));
  });
}

// ---- Activation and loss.

void Run(const ops::GatedActivation& op) {
  Dispatch(op.kName, op.y.dtype, [&]<typename T>() {
    reference::GatedActivation<T>(op.activation, TypedConst<T>(op.gate), TypedConst<T>(op.up),
                                  Typed<T>(op.y));
  });
}

void Run(const ops::GatedActivationBackward& op) {
  Dispatch(op.kName, op.dy.dtype, [&]<typename T>() {
    reference::GatedActivationBackward<T>(op.activation, TypedConst<T>(op.dy),
                                          TypedConst<T>(op.gate), TypedConst<T>(op.up),
                                          Typed<T>(op.d_gate), Typed<T>(op.d_up));
  });
}

void Run(const ops::CrossEntropy& op) {
  Dispatch(op.kName, op.logits_inout.dtype, [&]<typename T>() {
    reference::CrossEntropy<T>(Indices(op.targets), static_cast<T>(op.softcap),
                               TypedConst<T>(op.row_scale), Typed<T>(op.logits_inout),
                               Typed<T>(op.logprob), Typed<T>(op.hit), static_cast<T>(op.smoothing),
                               Typed<T>(op.mean), Typed<T>(op.entropy));
  });
}

void Run(const ops::KlDivergence& op) {
  Dispatch(op.kName, op.logits_inout.dtype, [&]<typename T>() {
    reference::KlDivergence<T>(static_cast<T>(op.softcap), static_cast<T>(op.scale),
                               Typed<T>(op.base_inout), Typed<T>(op.logits_inout), Typed<T>(op.kl));
  });
}

void Run(const ops::SumRows& op) {
  Dispatch(op.kName, op.values.dtype, [&]<typename T>() {
    const Mat<const T> values = TypedConst<T>(op.values);
    for (std::int64_t k = 0; k < values.rows; ++k) {
      // In float64 for every T; a derivative in the imaginary part is not summed.
      double& sum = op.sums_acc.Row<double>(0)[k];
      for (std::int64_t n = 0; n < values.cols; ++n) {
        sum += static_cast<double>(std::real(values(k, n)));
      }
    }
  });
}

// ---- Rows.

void Run(const ops::Copy& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      CopyRow<T>(TypedConst<T>(op.x), n, Typed<T>(op.y), n, Store::kSet);
    }
  });
}

// The bytes of 0 are 0 in each type.
void Run(const ops::Zero& op) {
  for (std::int64_t n = 0; n < op.y.rows; ++n) {
    std::memset(static_cast<std::byte*>(op.y.data) + BytesOf(op.y.dtype, n * op.y.stride), 0,
                BytesOf(op.y.dtype, op.y.cols));
  }
}

void Run(const ops::Add& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      CopyRow<T>(TypedConst<T>(op.x), n, Typed<T>(op.y_acc), n, Store::kAdd);
    }
  });
}

void Run(const ops::GatherRows& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (std::int64_t n = 0; n < op.y.rows; ++n) {
      CopyRow<T>(TypedConst<T>(op.x), op.rows.data[n], Typed<T>(op.y), n, Store::kSet);
    }
  });
}

void Run(const ops::ScatterAddRows& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (std::int64_t n = 0; n < op.x.rows; ++n) {
      CopyRow<T>(TypedConst<T>(op.x), n, Typed<T>(op.y_acc), op.rows.data[n], Store::kAdd);
    }
  });
}

// ---- Mixture of experts.

// The choice of experts first, then the slots, which follow from the choice alone.
void Run(const ops::RouteExperts& op) {
  Dispatch(op.kName, op.logits.dtype, [&]<typename T>() {
    reference::SelectExperts<T>(TypedConst<T>(op.logits), TypedConst<T>(op.bias),
                                {op.score, op.normalize, op.scale}, op.routing.experts.data,
                                Typed<T>(op.weights));
  });
  reference::FillSlots(op.weights.cols, op.routing);
}

// The logits are replaced by their gradient, row by row.
void Run(const ops::RouteExpertsBackward& op) {
  Dispatch(op.kName, op.logits_inout.dtype, [&]<typename T>() {
    reference::SelectExpertsBackward<T>(
        TypedConst<T>(op.d_weights), op.experts.data, TypedConst<T>(op.weights),
        {op.score, op.normalize, op.scale}, Typed<T>(op.logits_inout));
  });
}

void Run(const ops::GateRows& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::GateRows<T>(TypedConst<T>(op.x), TypedConst<T>(op.gate), Typed<T>(op.y));
  });
}

void Run(const ops::GateRowsBackward& op) {
  Dispatch(op.kName, op.dy.dtype, [&]<typename T>() {
    reference::GateRowsBackward<T>(TypedConst<T>(op.dy), TypedConst<T>(op.x),
                                   TypedConst<T>(op.gate), Typed<T>(op.d_gate), Typed<T>(op.dx));
  });
}

void Run(const ops::ScaleRows& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::ScaleRows<T>(TypedConst<T>(op.x), TypedConst<T>(op.scale), Typed<T>(op.y));
  });
}

void Run(const ops::RowDots& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::RowDots<T>(TypedConst<T>(op.x), TypedConst<T>(op.y), Typed<T>(op.dots));
  });
}

// ---- Noise, whole weights, DoRA.

void Run(const ops::AddNoise& op) {
  Dispatch(op.kName, op.y_acc.dtype, [&]<typename T>() {
    reference::AddNoise<T>(op.key, TypedConst<T>(op.magnitude), Typed<T>(op.y_acc));
  });
}

void Run(const ops::WeightGradient& op) {
  Dispatch(op.kName, op.dy.dtype, [&]<typename T>() {
    reference::WeightGradient<T>(TypedConst<T>(op.dy), TypedConst<T>(op.x), Typed<T>(op.dw_acc));
  });
}

void Run(const ops::RowNorms& op) {
  Dispatch(op.kName, op.inverse.dtype, [&]<typename T>() {
    // A linear without a bias, of which only the rows of W + scale B A are read.
    const std::vector<T> values = Widened<T>(op.weight);
    reference::RowNorms<T>(Typed<T>({op.weight, {}, op.lora}, values), Typed<T>(op.norm),
                           Typed<T>(op.inverse));
  });
}

void Run(const ops::ScaleColumns& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::ScaleColumns<T>(TypedConst<T>(op.x), TypedConst<T>(op.gain), TypedConst<T>(op.bias),
                               Typed<T>(op.y), op.store);
  });
}

void Run(const ops::ColumnDots& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    reference::ColumnDots<T>(TypedConst<T>(op.x), TypedConst<T>(op.y), Typed<T>(op.dots));
  });
}

void Run(const ops::ColumnSquares& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    const Mat<const T> x = TypedConst<T>(op.x);
    for (std::int64_t n = 0; n < x.rows; ++n) {
      for (std::int64_t i = 0; i < x.cols; ++i) {
        const auto value = static_cast<double>(std::real(x(n, i)));
        op.sums_acc.Row<double>(0)[i] += value * value;
      }
    }
  });
}

// ---- The optimizer.

// Moments of 8 bits are decoded, updated in T, and encoded again; others are copied both ways.
void Run(const ops::Update& op) {
  Dispatch(op.kName, op.gradient.dtype, [&]<typename T>() {
    reference::MomentOf<T> m(op.m_inout, op.gradient.cols, DynamicMap::Signed());
    reference::MomentOf<T> v(op.v_inout, op.gradient.cols, DynamicMap::Unsigned());
    reference::Update<T>(op.args, TypedConst<T>(op.gradient), Typed<T>(op.param_inout), m.values(),
                         v.values());
    m.Store();
    v.Store();
  });
}

void Run(const ops::SumOfSquares& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    const Mat<const T> x = TypedConst<T>(op.x);
    double sum = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const auto value = static_cast<double>(std::real(x(0, i)));
      sum += value * value;
    }
    *op.sum.Row<double>(0) = sum;
  });
}

// ---- Layers with a state.

void Run(const ops::CausalConv& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (const SequenceSpan& span : op.spans) {
      reference::CausalConv<T>(op.activation, span, TypedConst<T>(op.x), TypedConst<T>(op.weight),
                               TypedConst<T>(op.bias), Typed<T>(op.y), Typed<T>(op.window_inout));
    }
  });
}

void Run(const ops::CausalConvBackward& op) {
  Dispatch(op.kName, op.x.dtype, [&]<typename T>() {
    for (const SequenceSpan& span : op.spans) {
      reference::CausalConvBackward<T>(op.activation, span, TypedConst<T>(op.dy),
                                       TypedConst<T>(op.x), TypedConst<T>(op.weight),
                                       TypedConst<T>(op.bias), Typed<T>(op.dx));
    }
  });
}

template <typename T, typename DeltaRule>
reference::DeltaRuleOf<T> OperandsOf(const DeltaRule& op) {
  return {.shape = op.shape,
          .q = TypedConst<T>(op.q),
          .k = TypedConst<T>(op.k),
          .v = TypedConst<T>(op.v),
          .a = TypedConst<T>(op.a),
          .b = TypedConst<T>(op.b),
          .rate = TypedConst<T>(op.rate),
          .dt_bias = TypedConst<T>(op.dt_bias)};
}

// A state that the op was not given begins as zeros, and is forgotten.
void Run(const ops::GatedDeltaRule& op) {
  const std::int64_t heads = op.shape.heads;
  const std::int64_t K = op.shape.key_dim;
  const std::int64_t V = op.shape.value_dim;
  Dispatch(op.kName, op.q.dtype, [&]<typename T>() {
    const Mat<T> states = Typed<T>(op.state_inout);
    for (const SequenceSpan& span : op.spans) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<T> zeros(states.empty() ? K * V : 0);
        const Mat<T> state =
            states.empty() ? Mat<T>{zeros.data(), K, V, V}
                           : Mat<T>{&states((span.state * heads + h) * K, 0), K, V, states.stride};
        reference::GatedDeltaRule<T>(OperandsOf<T>(op), span, h, Typed<T>(op.o), state);
      }
    }
  });
}

// dq and dk are sums over the value heads that share a key head.
void Run(const ops::GatedDeltaRuleBackward& op) {
  Run(ops::Zero{op.dq});
  Run(ops::Zero{op.dk});
  Dispatch(op.kName, op.q.dtype, [&]<typename T>() {
    const reference::DeltaRuleGradient<T> out = {Typed<T>(op.dq), Typed<T>(op.dk), Typed<T>(op.dv),
                                                 Typed<T>(op.da), Typed<T>(op.db)};
    for (const SequenceSpan& span : op.spans) {
      for (std::int64_t h = 0; h < op.shape.heads; ++h) {
        reference::GatedDeltaRuleBackward<T>(OperandsOf<T>(op), span, h, TypedConst<T>(op.d_o),
                                             out);
      }
    }
  });
}

// ---- The backend.

// Without workspace, threads or choices of speed: there is nothing to plan, and sums always have
// one order.
class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(FrozenProducts frozen) : frozen_(frozen) {}

  Memory& memory() const override { return HostMemory(); }
  std::size_t WorkspaceBytes(const BackendLimits&) const override { return 0; }
  void Reserve(const BackendLimits&) override {}
  // Weights are read where they are; nothing is carved.
  const void* Adopt(const void* host, std::size_t, WeightUse, Carver&) override { return host; }
  std::size_t PrepackedBytes(const WeightView&) const override { return 0; }
  void Prepack(const WeightView&, std::byte*) override { RefuseToPrepack(); }

 private:
  QuantizedView DoQuantize(const ConstMatrixView& host, const QuantizeOptions& options,
                           const MatrixView& storage) override {
    // One thread, and the same bits as with more.
    Context context(1);
    return QuantizeInto(context, host, options, BytesIn(storage));
  }
  void DoRun(const Op& op) override {
    std::visit(
        [this](const auto& any) {
          if constexpr (requires { reference::Run(any, frozen_); }) {
            reference::Run(any, frozen_);
          } else {
            qlora::Run(any);
          }
        },
        op);
  }

  const FrozenProducts frozen_;
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend(FrozenProducts frozen) {
  return std::make_unique<ReferenceBackend>(frozen);
}

}  // namespace qlora

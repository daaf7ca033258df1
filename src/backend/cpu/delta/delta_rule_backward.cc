// The gated delta rule, backward. A task is a key head of a sequence; for each of its value heads
// it finds the states before all chunks again, and then walks from the last chunk to the first,
// with dS', the gradient of the state behind the chunk:
//
//   dR = B^T do + e^(G_C - G) k dS'              dZ = (I + A)^-T dR
//   dB = do R^T                                  dA = -dZ R^T
//   d(q S) = e^G do                              dm = -beta e^G dZ
//   [dk; dq] = [dm; d(q S)] S^T + the products of dB * D and dA * D with k and q
//   dS = e^G_C dS' + [k; q]^T [dm; d(q S)]
//
// The gradients of the state that R adds to, e^(G_C - G) k and R, meet dS' in one more product.
#include <algorithm>

#include "backend/cpu/delta/delta_chunk.h"
#include "backend/cpu/delta/delta_rule.h"

namespace qlora::cpu {
namespace {

// Scratch of one worker. Shapes are those of a full chunk.
struct DeltaGradientScratch {
  DeltaChunk chunk;
  MatrixView states;        // (chunks, K * V) the states before them, as panels
  MatrixView sums;          // (length, 2 K) dk and dq of the value heads so far
  Panels d_state;           // (K, V) dS'
  Panels turned_state;      // (V, K) S^T, then dS'^T
  Panels d_o;               // (C, V)
  Panels dz;                // (C, V) dR, then dZ
  Panels turned_added;      // (V, C) R^T
  Panels head;              // (C, K) k, then q
  Panels d_reads;           // (2 C, V) dm, then d(q S)
  MatrixView d_pairs;       // (2 C, C) of PairGradients
  MatrixView turned, sum;   // (C, C)
  MatrixView d_heads;       // (2 C, K) dk, then dq
  MatrixView turned_heads;  // (K, 2 C) [k; q]^T
  MatrixView d_scaled;      // (C, K) R dS'^T

  DeltaGradientScratch(Carver& carver, const Kernels& kernels, const DeltaRuleShape& shape,
                       std::int64_t length)
      : chunk(carver, kernels, shape) {
    const std::int64_t K = shape.key_dim;
    const std::int64_t V = shape.value_dim;
    const auto panels = [&](std::int64_t rows, std::int64_t lanes) {
      return CarvePanels(carver, kernels, rows, lanes);
    };
    const auto plain = [&](std::int64_t rows, std::int64_t cols) {
      return carver.Matrix(DType::kF32, rows, cols);
    };
    d_state = panels(K, V);
    states = plain(Pieces(length, kDeltaChunk), d_state.size());
    if (shape.heads > shape.key_heads) sums = plain(length, 2 * K);
    turned_state = panels(V, K);
    d_o = panels(kDeltaChunk, V);
    dz = panels(kDeltaChunk, V);
    turned_added = panels(V, kDeltaChunk);
    head = panels(kDeltaChunk, K);
    d_reads = panels(2 * kDeltaChunk, V);
    d_pairs = plain(2 * kDeltaChunk, kPairStride);
    turned = plain(kDeltaChunk, kPairStride);
    sum = plain(kDeltaChunk, kPairStride);
    d_heads = plain(2 * kDeltaChunk, PackedStride(kernels, K));
    turned_heads = plain(K, 2 * kDeltaChunk + kRowGap);
    d_scaled = plain(kDeltaChunk, PackedStride(kernels, K));
  }
};

class DeltaBackwardRun {
 public:
  DeltaBackwardRun(const Kernels& kernels, const ops::GatedDeltaRuleBackward& op,
                   const SequenceSpan& span, DeltaGradientScratch& scratch)
      : kernels_(kernels), op_(op), span_(span), scratch_(scratch), chunk_(scratch.chunk) {}

  void RunKeyHead(std::int64_t g) {
    const std::int64_t group = op_.shape.heads / op_.shape.key_heads;
    for (std::int64_t j = 0; j < group; ++j) {
      const std::int64_t h = op_.shape.value_head(g, j);
      const std::int64_t chunks = Pieces(span_.rows, kDeltaChunk);
      FindStates(h, chunks);
      for (std::int64_t c = chunks - 1; c >= 0; --c) {
        BeginHeads(c, j > 0);
        RunChunk(h, c);
        EndHeads(g, c, j + 1 == group);
      }
    }
  }

 private:
  ChunkRows At(std::int64_t c, std::int64_t h) const {
    const std::int64_t first = c * kDeltaChunk;
    return {span_.begin + first, std::min(kDeltaChunk, span_.rows - first), h};
  }
  Panels State(std::int64_t c) const {
    Panels state = scratch_.d_state;
    state.data = scratch_.states.Row<float>(c);
    return state;
  }

  void FindStates(std::int64_t h, std::int64_t chunks) {
    std::fill_n(State(0).data, State(0).size(), 0.0f);
    for (std::int64_t c = 0; c + 1 < chunks; ++c) {
      PrepareChunk(kernels_, op_, At(c, h), false, State(c), chunk_);
      NextState(kernels_, kDeltaChunk, State(c), chunk_, State(c + 1));
    }
  }

  // A square matrix transposed, as the left side of a product.
  Left Transposed(const float* m, std::int64_t rows) {
    kernels_.pack_rows_transposed({m, DType::kF32, rows, rows, kPairStride}, scratch_.turned.data,
                                  kPairStride);
    return {scratch_.turned.Row<float>(0), kPairStride, rows, rows};
  }

  void RunChunk(std::int64_t h, std::int64_t c) {
    const ChunkRows at = At(c, h);
    const std::int64_t rows = at.rows;
    const std::int64_t V = op_.shape.value_dim;
    const bool last = c + 1 == Pieces(span_.rows, kDeltaChunk);
    PrepareChunk(kernels_, op_, at, true, State(c), chunk_);
    RowGradients gradients = {};

    const ConstMatrixView d_o = Block(op_.d_o, at.row, rows, h * V, V);
    const Panels d_o_panels = scratch_.d_o.WithRows(rows);
    LoadPanels(kernels_, d_o, d_o_panels);
    const Panels dz = scratch_.dz.WithRows(rows);
    MultiplyInto(kernels_, Transposed(chunk_.attend.Row<float>(0), rows), d_o_panels, false, dz);
    if (!last) MultiplyInto(kernels_, ScaledKeys(rows), scratch_.d_state, true, dz);
    SolveUpper(kernels_, Transposed(chunk_.negated.Row<float>(0), rows).data, dz);

    AddPairGradients(rows, d_o_panels, dz, gradients);

    const Panels d_reads = scratch_.d_reads.WithRows(2 * rows);
    ValueGradients({.d_o = d_o,
                    .v = Block(op_.v, at.row, rows, h * V, V),
                    .dz = dz,
                    .reads = chunk_.reads.Row<float>(0),
                    .stride = chunk_.reads.stride},
                   chunk_.gates, Block(op_.dv, at.row, rows, h * V, V), d_reads, gradients);
    TransposeInto(kernels_, State(c), scratch_.turned_state);
    MultiplyInto(kernels_, d_reads, scratch_.turned_state, true, scratch_.d_heads.Row<float>(0),
                 scratch_.d_heads.stride);
    if (!last) AddStateGradients(rows, State(c), gradients);
    if (c > 0) PassStateGradient(rows, last, d_reads);
    GateGradients(chunk_.gates, gradients, rows, at.row, h, op_.da, op_.db);
  }

  // e^(G_C - G) k
  Left ScaledKeys(std::int64_t rows) const {
    const std::int64_t K = op_.shape.key_dim;
    ScaleRowsInto(chunk_.heads.Row<float>(0), chunk_.heads.stride, chunk_.gates.to_end, rows, K,
                  chunk_.scaled.Row<float>(0), chunk_.scaled.stride);
    return {chunk_.scaled.Row<float>(0), chunk_.scaled.stride, rows, K};
  }

  // dk += (M + M^T) k + (dB * D)^T q;  dq += (dB * D) k
  void AddPairGradients(std::int64_t rows, const Panels& d_o, const Panels& dz,
                        RowGradients& gradients) {
    Panels turned_added = scratch_.turned_added;
    turned_added.lanes = rows;
    TransposeInto(kernels_, chunk_.added.WithRows(rows), turned_added);
    float* d_attend = scratch_.d_pairs.Row<float>(0);
    float* d_solve = scratch_.d_pairs.Row<float>(rows);
    MultiplyInto(kernels_, d_o, turned_added, false, d_attend, kPairStride);
    MultiplyInto(kernels_, dz, turned_added, false, d_solve, kPairStride);
    PairGradients(chunk_.gates, rows, chunk_.Pairs(rows, true), d_attend, d_solve, gradients);

    float* sum = scratch_.sum.Row<float>(0);
    AddPairs(d_solve, Transposed(d_solve, rows).data, rows, sum);
    AddHeads({sum, kPairStride, rows, rows}, LoadHead(0, rows), 0);
    AddHeads({d_attend, kPairStride, rows, rows}, scratch_.head.WithRows(rows), rows);
    AddHeads(Transposed(d_attend, rows), LoadHead(rows, rows), 0);
  }
  // Rows [first, first + rows) of [k; q] as panels.
  Panels LoadHead(std::int64_t first, std::int64_t rows) const {
    const Panels head = scratch_.head.WithRows(rows);
    LoadPanels(kernels_, Block(ConstMatrixView(chunk_.heads), first, rows, 0, head.lanes), head);
    return head;
  }
  void AddHeads(const Left& a, const Panels& head, std::int64_t row) const {
    MultiplyInto(kernels_, a, head, true, scratch_.d_heads.Row<float>(row),
                 scratch_.d_heads.stride);
  }

  // Of S' = e^G_C S + (e^(G_C - G) k)^T R: dk, and the gradients of the gates.
  void AddStateGradients(std::int64_t rows, const Panels& state, RowGradients& gradients) const {
    const Panels& d_state = scratch_.d_state;
    TransposeInto(kernels_, d_state, scratch_.turned_state);
    float* d_scaled = scratch_.d_scaled.Row<float>(0);
    MultiplyInto(kernels_, chunk_.added.WithRows(rows), scratch_.turned_state, false, d_scaled,
                 scratch_.d_scaled.stride);
    gradients.d_gate[rows - 1] +=
        KeyGradients(chunk_.heads.Row<float>(0), d_scaled, chunk_.heads.stride, rows,
                     op_.shape.key_dim, chunk_.gates, scratch_.d_heads.Row<float>(0), gradients) +
        chunk_.gates.whole * DotOf(d_state.data, state.data, state.size());
  }

  // dS = e^G_C dS' + [k; q]^T [dm; d(q S)]
  void PassStateGradient(std::int64_t rows, bool last, const Panels& d_reads) const {
    const Panels& d_state = scratch_.d_state;
    const std::int64_t K = op_.shape.key_dim;
    const std::int64_t stride = scratch_.turned_heads.stride;
    kernels_.pack_rows_transposed(
        {chunk_.heads.data, DType::kF32, 2 * rows, K, chunk_.heads.stride},
        scratch_.turned_heads.data, stride);
    if (!last) ScaleInto(d_state.data, chunk_.gates.whole, d_state.size(), d_state.data);
    MultiplyInto(kernels_, {scratch_.turned_heads.Row<float>(0), stride, K, 2 * rows}, d_reads,
                 !last, d_state);
  }

  // dk and dq start from the sums over the value heads before; the last one writes the gradients.
  void BeginHeads(std::int64_t c, bool add) const {
    const std::int64_t K = op_.shape.key_dim;
    const std::int64_t rows = At(c, 0).rows;
    for (std::int64_t r = 0; r < rows; ++r) {
      float* dk = scratch_.d_heads.Row<float>(r);
      float* dq = scratch_.d_heads.Row<float>(rows + r);
      if (add) {
        const float* sums = scratch_.sums.Row<float>(c * kDeltaChunk + r);
        std::copy_n(sums, K, dk);
        std::copy_n(sums + K, K, dq);
      } else {
        std::fill_n(dk, K, 0.0f);
        std::fill_n(dq, K, 0.0f);
      }
    }
  }
  void EndHeads(std::int64_t g, std::int64_t c, bool last) const {
    const std::int64_t K = op_.shape.key_dim;
    const ChunkRows at = At(c, 0);
    const MatrixView& heads = scratch_.d_heads;
    if (last) {
      const auto backward = [&](const float* dy, const ConstMatrixView& x, const float* rstd,
                                float scale, const MatrixView& dx) {
        NormHeadsBackward(dy, heads.stride, Block(x, at.row, at.rows, g * K, K), rstd, scale,
                          Block(dx, at.row, at.rows, g * K, K));
      };
      backward(heads.Row<float>(0), op_.k, chunk_.k_rstd, 1, op_.dk);
      backward(heads.Row<float>(at.rows), op_.q, chunk_.q_rstd,
               1 / std::sqrt(static_cast<float>(K)), op_.dq);
      return;
    }
    for (std::int64_t r = 0; r < at.rows; ++r) {
      float* sums = scratch_.sums.Row<float>(c * kDeltaChunk + r);
      std::copy_n(heads.Row<float>(r), K, sums);
      std::copy_n(heads.Row<float>(at.rows + r), K, sums + K);
    }
  }

  const Kernels& kernels_;
  const ops::GatedDeltaRuleBackward& op_;
  const SequenceSpan& span_;
  DeltaGradientScratch& scratch_;
  DeltaChunk& chunk_;
};

}  // namespace

WorkspaceSize DeltaBackwardWorkspace(const Kernels& kernels, const DeltaRuleShape& shape,
                                     std::int64_t length) {
  if (length == 0) return {};
  Carver worker;
  const DeltaGradientScratch scratch(worker, kernels, shape, length);
  return {0, worker.bytes()};
}

void GatedDeltaRuleBackward(const Machine& machine, const ops::GatedDeltaRuleBackward& op) {
  std::int64_t longest = 0;
  for (const SequenceSpan& span : op.spans) longest = std::max(longest, span.rows);
  machine.workspace.Check(DeltaBackwardWorkspace(machine.kernels, op.shape, longest));
  ParallelParts(
      machine, std::ssize(op.spans), [&](std::int64_t) { return op.shape.key_heads; },
      [&](std::int64_t s, std::int64_t g, int worker) {
        Carver carver(machine.workspace.worker(worker));
        DeltaGradientScratch scratch(carver, machine.kernels, op.shape, longest);
        DeltaBackwardRun(machine.kernels, op, op.spans[s], scratch).RunKeyHead(g);
      });
}

}  // namespace qlora::cpu

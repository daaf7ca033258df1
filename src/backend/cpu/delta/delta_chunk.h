// A chunk of the gated delta rule: up to kDeltaChunk tokens of one value head and sequence, from
// the state S (K, V) before them to that behind them, in products of small matrices.
//
//   [k; q] k^T   (2 C, C)    how keys and queries meet the keys of the chunk
//   [k; q] S     (2 C, V)    and the state: m, and q S
//   (I + A) R = beta (v - e^G m)      R (C, V): what each token adds to the state, u of the step
//   o  = e^G q S + B R
//   S' = e^G_C S + (e^(G_C - G) k)^T R
//
// S is read through R alone where others solve for (I + A)^-1 beta v and (I + A)^-1 beta e^G k
// first: chunks of a head are one after the other anyway, and one system is less work than two.
#ifndef QLORA_BACKEND_CPU_DELTA_DELTA_CHUNK_H_
#define QLORA_BACKEND_CPU_DELTA_DELTA_CHUNK_H_

#include <cmath>

#include "backend/cpu/delta/delta_rows.h"
#include "backend/cpu/gemm/panels.h"
#include "backend/cpu/views.h"

namespace qlora::cpu {

// Rows [row, row + rows) of the operands, of value head h.
struct ChunkRows {
  std::int64_t row;
  std::int64_t rows;
  std::int64_t h;
};

// The matrices of a chunk. Rows and columns of the comments are those of a full one.
struct DeltaChunk {
  DeltaGates gates;
  float k_rstd[kDeltaChunk];
  float q_rstd[kDeltaChunk];
  MatrixView heads;                   // (2 C, K) k, then q, normed; q also times K^-1/2
  MatrixView scaled;                  // (C, K) e^(G_C - G) k
  MatrixView turned;                  // (K, C) the same, transposed
  Panels keys;                        // (K, C) k^T
  MatrixView pairs;                   // (2 C, C) k k^T, then q k^T
  MatrixView decay, negated, attend;  // (C, C) D, -A and B of PairMatrices
  MatrixView reads;                   // (2 C, V) m, then q S
  Panels added;                       // (C, V) R

  DeltaChunk(Carver& carver, const Kernels& kernels, const DeltaRuleShape& shape) {
    const auto square = [&](std::int64_t rows) {
      return carver.Matrix(DType::kF32, rows, kPairStride);
    };
    const std::int64_t K = PackedStride(kernels, shape.key_dim);
    heads = carver.Matrix(DType::kF32, 2 * kDeltaChunk, K);
    scaled = carver.Matrix(DType::kF32, kDeltaChunk, K);
    turned = square(shape.key_dim);
    keys = CarvePanels(carver, kernels, shape.key_dim, kDeltaChunk);
    pairs = square(2 * kDeltaChunk);
    decay = square(kDeltaChunk);
    negated = square(kDeltaChunk);
    attend = square(kDeltaChunk);
    reads = carver.Matrix(DType::kF32, 2 * kDeltaChunk, PackedStride(kernels, shape.value_dim));
    added = CarvePanels(carver, kernels, kDeltaChunk, shape.value_dim);
  }

  PairMatrices Pairs(std::int64_t rows, bool queries) const {
    return {.kk = pairs.Row<float>(0),
            .qk = queries ? pairs.Row<float>(rows) : nullptr,
            .decay = decay.Row<float>(0),
            .negated = negated.Row<float>(0),
            .attend = attend.Row<float>(0)};
  }
};

// From the operands of GatedDeltaRule, or of its gradient, to R: everything up to the new state.
// queries: also q, q k^T, B and q S. state: (K, V).
template <typename Op>
void PrepareChunk(const Kernels& kernels, const Op& op, const ChunkRows& at, bool queries,
                  const Panels& state, DeltaChunk& chunk) {
  const std::int64_t K = op.shape.key_dim;
  const std::int64_t V = op.shape.value_dim;
  const std::int64_t rows = at.rows;
  const std::int64_t key = op.shape.key_head(at.h) * K;
  const float scale = 1 / std::sqrt(static_cast<float>(K));
  const std::int64_t stride = chunk.heads.stride;
  NormHeads(Block(op.k, at.row, rows, key, K), 1, chunk.heads.Row<float>(0), stride, chunk.k_rstd);
  if (queries) {
    NormHeads(Block(op.q, at.row, rows, key, K), scale, chunk.heads.Row<float>(rows), stride,
              chunk.q_rstd);
  }
  ComputeGates({op.a, op.b, op.rate, op.dt_bias, at.row, rows, at.h}, chunk.gates);

  const Left both = {chunk.heads.Row<float>(0), stride, queries ? 2 * rows : rows, K};
  Panels keys = chunk.keys;
  keys.lanes = rows;
  PackPanelsOfRows(kernels, {chunk.heads.data, DType::kF32, rows, K, stride}, keys.data);
  MultiplyInto(kernels, both, keys, false, chunk.pairs.Row<float>(0), kPairStride);
  DecayPairs(chunk.gates, rows, chunk.Pairs(rows, queries));
  MultiplyInto(kernels, both, state, false, chunk.reads.Row<float>(0), chunk.reads.stride);

  const Panels added = chunk.added.WithRows(rows);
  RightSide(Block(op.v, at.row, rows, at.h * V, V), chunk.gates, chunk.reads.Row<float>(0),
            chunk.reads.stride, added);
  SolveLower(kernels, chunk.negated.Row<float>(0), added);
}

// next = e^G_C state + (e^(G_C - G) k)^T R; next may be state.
inline void NextState(const Kernels& kernels, std::int64_t rows, const Panels& state,
                      DeltaChunk& chunk, const Panels& next) {
  const std::int64_t K = state.rows;
  const std::int64_t stride = chunk.heads.stride;
  ScaleRowsInto(chunk.heads.Row<float>(0), stride, chunk.gates.to_end, rows, K,
                chunk.scaled.Row<float>(0), stride);
  kernels.pack_rows_transposed({chunk.scaled.data, DType::kF32, rows, K, stride}, chunk.turned.data,
                               kPairStride);
  ScaleInto(state.data, chunk.gates.whole, state.size(), next.data);
  MultiplyInto(kernels, {chunk.turned.Row<float>(0), kPairStride, K, rows},
               chunk.added.WithRows(rows), true, next);
}

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_DELTA_DELTA_CHUNK_H_

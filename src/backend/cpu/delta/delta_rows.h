// The parts of the gated delta rule that are no products: gates, norms, the triangular systems of a
// chunk, and what gradients need row by row. All are of one value head; docs/math/
// gated_delta_rule.md has the formulas by chunks, and the names of their matrices.
#ifndef QLORA_BACKEND_CPU_DELTA_DELTA_ROWS_H_
#define QLORA_BACKEND_CPU_DELTA_DELTA_ROWS_H_

#include "backend/cpu/delta/delta_panels.h"
#include "backend/ops.h"

namespace qlora::cpu {

// Tokens of a chunk, at most. Fewer make less work in the chunk, C (K + 1.5 V) for each token, and
// more between chunks, where each reads and writes the state.
inline constexpr std::int64_t kDeltaChunk = 64;
static_assert(kRecurrentPart % kDeltaChunk == 0);
// Elements between rows of a (chunk, chunk) matrix: not a power of two, so that rows of a product
// do not compete for the same cache set.
inline constexpr std::int64_t kPairStride = kDeltaChunk + 16;

// The rows of a chunk, or of a few tokens.
struct DeltaGates {
  float beta[kDeltaChunk];
  float beta_slope[kDeltaChunk];  // d beta / d b
  float own[kDeltaChunk];         // e^g
  float own_slope[kDeltaChunk];   // d g / d a
  double sum[kDeltaChunk];        // G: g summed up to the row
  float from_start[kDeltaChunk];  // e^G
  float to_end[kDeltaChunk];      // e^(G of the last row - G)
  float whole;                    // e^(G of the last row)
};
// The operands of the gates at rows [row, row + rows) for value head h.
struct GateInputs {
  ConstMatrixView a, b, rate, dt_bias;
  std::int64_t row, rows, h;
};
void ComputeGates(const GateInputs& in, DeltaGates& gates);

// out(r) = scale x(r) rstd[r], rstd = (sum of x^2 + epsilon)^-1/2. x: the rows of one head.
void NormHeads(const ConstMatrixView& x, float scale, float* out, std::int64_t stride, float* rstd);
// dx(r) = scale (rstd dy - x rstd^3 sum(dy x))
void NormHeadsBackward(const float* dy, std::int64_t stride, const ConstMatrixView& x,
                       const float* rstd, float scale, const MatrixView& dx);

// out(r) = factor[r] in(r), and for whole matrices.
void ScaleRowsInto(const float* in, std::int64_t in_stride, const float* factor, std::int64_t rows,
                   std::int64_t cols, float* out, std::int64_t out_stride);
void ScaleInto(const float* in, float factor, std::int64_t count, float* out);
float DotOf(const float* x, const float* y, std::int64_t count);

// (rows, rows) matrices with kPairStride elements from row to row; whole rows of kDeltaChunk
// elements are written.
struct PairMatrices {
  const float* kk;  // k k^T
  const float* qk;  // q k^T; null: attend is not computed
  float* decay;     // D(i, j) = e^(G_i - G_j), j <= i
  float* negated;   // -A(i, j) = -beta_i kk D, j < i
  float* attend;    // B(i, j) = qk D
};
void DecayPairs(const DeltaGates& gates, std::int64_t rows, const PairMatrices& m);

// z = beta (v - e^G m), for rows of v (of one head) and m = k S.
void RightSide(const ConstMatrixView& v, const DeltaGates& gates, const float* m,
               std::int64_t stride, const Panels& z);

// Solves (I + A) x = z in place, and the transposed system. negated_transposed(i, j) = -A(j, i).
void SolveLower(const Kernels& kernels, const float* negated, const Panels& z_inout);
void SolveUpper(const Kernels& kernels, const float* negated_transposed, const Panels& z_inout);

// A few tokens one by one; state (K, V) is read and overwritten; keys: room for 2 K floats.
void DeltaTokens(const ops::GatedDeltaRule& op, const SequenceSpan& span, std::int64_t h,
                 const MatrixView& state, float* keys);

// ---- Gradients. d_gate and d_beta of each row are added to; d_gate is the gradient of G.

struct RowGradients {
  float d_gate[kDeltaChunk];
  float d_beta[kDeltaChunk];
};

// Of the (rows, rows) matrices, in place: d_attend is dB and becomes dB * D, the gradient of q k^T;
// d_solve is dZ R^T = -dA and becomes M = beta dA D, the gradient of k k^T.
void PairGradients(const DeltaGates& gates, std::int64_t rows, const PairMatrices& m,
                   float* d_attend, float* d_solve, RowGradients& out);
// sum(i, j) = m(i, j) + transposed(i, j)
void AddPairs(const float* m, const float* transposed, std::int64_t rows, float* sum);

// Of o = e^G reads + ..., z = beta (v - e^G m): reads holds m, then q S. Writes dv, and the
// gradients of m and q S to d_reads, which has the rows of both.
struct ValueGradientInputs {
  ConstMatrixView d_o, v;  // the rows of a head
  Panels dz;
  const float* reads;
  std::int64_t stride;
};
void ValueGradients(const ValueGradientInputs& in, const DeltaGates& gates, const MatrixView& dv,
                    const Panels& d_reads, RowGradients& out);

// dk += e^(G_C - G) dr, where dr = R dS'^T; returns the sum of the gradients of G_C.
float KeyGradients(const float* k, const float* dr, std::int64_t stride, std::int64_t rows,
                   std::int64_t cols, const DeltaGates& gates, float* dk, RowGradients& out);

// da and db of rows [row, ...) of head h. Gates sum up, so their gradients sum down.
void GateGradients(const DeltaGates& gates, const RowGradients& gradients, std::int64_t rows,
                   std::int64_t row, std::int64_t h, const MatrixView& da, const MatrixView& db);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_DELTA_DELTA_ROWS_H_

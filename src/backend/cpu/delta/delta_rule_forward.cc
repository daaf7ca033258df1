// The gated delta rule, forward. A task is a value head of a sequence: it carries the state through
// the chunks of the sequence, one after the other. Few tokens are one step each instead, which
// reads the state where it is: of a sequence that goes on, also those behind its last whole chunk,
// so that parts which begin with a chunk have the bits of the whole.
#include <algorithm>

#include "backend/cpu/delta/delta_chunk.h"
#include "backend/cpu/delta/delta_rule.h"
#include "backend/cpu/gemm/store_tile.h"

namespace qlora::cpu {
namespace {

// Below, the steps of tokens are faster than a chunk, which copies the state into panels and back:
// with K = V = 128, one token takes 0.4 of the time, and four take as long.
constexpr std::int64_t kLeastChunk = 4;

// Scratch of one worker.
struct DeltaScratch {
  DeltaChunk chunk;
  Panels state;      // (K, V)
  MatrixView plain;  // (K, V) the state of few tokens
  MatrixView keys;   // (2, K)

  DeltaScratch(Carver& carver, const Kernels& kernels, const DeltaRuleShape& shape)
      : chunk(carver, kernels, shape) {
    state = CarvePanels(carver, kernels, shape.key_dim, shape.value_dim);
    plain = carver.Matrix(DType::kF32, shape.key_dim, shape.value_dim);
    keys = carver.Matrix(DType::kF32, 2, shape.key_dim);
  }
};

// The state of a head that the op was given, or an empty view.
MatrixView StateOf(const ops::GatedDeltaRule& op, const SequenceSpan& span, std::int64_t h) {
  if (op.state_inout.empty()) return {};
  const std::int64_t K = op.shape.key_dim;
  return Rows(op.state_inout, (span.state * op.shape.heads + h) * K, K);
}

void RunTokens(const ops::GatedDeltaRule& op, const SequenceSpan& span, std::int64_t h,
               const DeltaScratch& scratch) {
  MatrixView state = StateOf(op, span, h);
  if (state.empty()) {
    state = scratch.plain;
    std::fill_n(state.Row<float>(0), state.rows * state.cols, 0.0f);
  }
  DeltaTokens(op, span, h, state, scratch.keys.Row<float>(0));
}

void RunChunks(const Kernels& kernels, const ops::GatedDeltaRule& op, const SequenceSpan& span,
               std::int64_t h, DeltaScratch& scratch) {
  const MatrixView kept = StateOf(op, span, h);
  const Panels& state = scratch.state;
  if (kept.empty()) {
    std::fill_n(state.data, state.size(), 0.0f);
  } else {
    LoadPanels(kernels, kept, state);
  }
  const std::int64_t V = op.shape.value_dim;
  DeltaChunk& chunk = scratch.chunk;
  for (std::int64_t first = 0; first < span.rows; first += kDeltaChunk) {
    const std::int64_t rows = std::min(kDeltaChunk, span.rows - first);
    const ChunkRows at = {span.begin + first, rows, h};
    PrepareChunk(kernels, op, at, true, state, chunk);
    // o = e^G q S + B R, in the place of q S.
    float* o = chunk.reads.Row<float>(rows);
    const std::int64_t stride = chunk.reads.stride;
    ScaleRowsInto(o, stride, chunk.gates.from_start, rows, V, o, stride);
    MultiplyInto(kernels, Left{chunk.attend.Row<float>(0), kPairStride, rows, rows},
                 chunk.added.WithRows(rows), true, o, stride);
    StoreTile(o, stride, false, Block(op.o, at.row, rows, h * V, V));
    // A state that nobody reads is not computed.
    if (first + rows < span.rows || !kept.empty()) NextState(kernels, rows, state, chunk, state);
  }
  if (!kept.empty()) StorePanels(state, kept);
}

}  // namespace

WorkspaceSize DeltaForwardWorkspace(const Kernels& kernels, const DeltaRuleShape& shape) {
  Carver worker;
  const DeltaScratch scratch(worker, kernels, shape);
  return {0, worker.bytes()};
}

void GatedDeltaRule(const Machine& machine, const ops::GatedDeltaRule& op) {
  machine.workspace.Check(DeltaForwardWorkspace(machine.kernels, op.shape));
  ParallelParts(
      machine, std::ssize(op.spans), [&](std::int64_t) { return op.shape.heads; },
      [&](std::int64_t s, std::int64_t h, int worker) {
        Carver carver(machine.workspace.worker(worker));
        DeltaScratch scratch(carver, machine.kernels, op.shape);
        const SequenceSpan& span = op.spans[s];
        const std::int64_t rest = op.state_inout.empty() ? span.rows : span.rows % kDeltaChunk;
        const std::int64_t single = rest < kLeastChunk ? rest : 0;
        const std::int64_t chunked = span.rows - single;
        if (chunked > 0) {
          RunChunks(machine.kernels, op, {span.begin, chunked, span.state}, h, scratch);
        }
        if (single > 0) RunTokens(op, {span.begin + chunked, single, span.state}, h, scratch);
      });
}

}  // namespace qlora::cpu

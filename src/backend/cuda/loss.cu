// Cross entropy: a block for each row of logits.
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

constexpr int kLossThreads = 512;

// The largest of some values, and the sum of exp(value - largest).
struct LogSum {
  float largest, sum;
};
struct JoinLogSums {
  GPU_INLINE LogSum operator()(const LogSum& a, const LogSum& b) const {
    const float largest = fmaxf(a.largest, b.largest);
    // Threads without a column, or with logits of -infinity alone: -infinity - -infinity would be
    // NaN.
    if (largest == -INFINITY) return {largest, 0.0f};
    return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
  }
};

// 1 - (c / softcap)^2, the slope of the cap at the capped value c.
GPU_INLINE float CapSlope(float c, float softcap) {
  const float ratio = c / softcap;
  return 1.0f - ratio * ratio;
}

// Caps the logits of the row and returns the sums of all of them.
GPU_INLINE LogSum CapAndSum(const ops::CrossEntropy& op, const Team& team) {
  LogSum mine = {-INFINITY, 0.0f};
  ForChunks(team, op.logits_inout.cols, [&](const Chunk& c) {
    float v[kChunk];
    LoadFrom(op.logits_inout, c, v);
    if (op.softcap > 0) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) v[i] = op.softcap * tanhf(v[i] / op.softcap);
      StoreTo(op.logits_inout, c, v);
    }
    float largest = mine.largest;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < c.count) largest = fmaxf(largest, v[i]);
    }
    // One pass for both the largest and the sum, because a row of V logits does not fit into
    // registers. When the largest grows, the sum so far shrinks by the factor exp(old - new) <= 1.
    float sum = mine.sum * expf(mine.largest - largest);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < c.count) sum += expf(v[i] - largest);
    }
    mine = {largest, sum};
  });
  GPU_SHARED(LogSum, partial, [kLossThreads / kWarp]);
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const LogSum other = {__shfl_xor_sync(kAllLanes, mine.largest, step),
                          __shfl_xor_sync(kAllLanes, mine.sum, step)};
    // Both lanes of a pair join in the same order, so that all have the same bits.
    const bool upper = (threadIdx.x & static_cast<unsigned>(step)) != 0;
    mine = upper ? JoinLogSums()(other, mine) : JoinLogSums()(mine, other);
  }
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = mine;
  __syncthreads();
  LogSum all = partial[0];
  for (int i = 1; i < kLossThreads / kWarp; ++i) all = JoinLogSums()(all, partial[i]);
  return all;
}

__global__ void __launch_bounds__(kLossThreads) CrossEntropyKernel(ops::CrossEntropy op) {
  const Team team = {blockIdx.x, static_cast<int>(threadIdx.x), kLossThreads};
  const LogSum all = CapAndSum(op, team);
  const std::int64_t target = op.targets.data[team.row];
  const float at_target = Float(op.logits_inout, team.row, target);
  if (team.rank == 0) {
    Float(op.logprob, 0, team.row) = at_target - (all.largest + logf(all.sum));
    if (op.hit.cols > 0) Float(op.hit, 0, team.row) = at_target >= all.largest ? 1.0f : 0.0f;
  }
  // Without row_scale no gradient is asked for, as in evaluation.
  if (op.row_scale.cols == 0) return;
  __syncthreads();  // the target has been read
  const float scale = Float(op.row_scale, 0, team.row);
  const float normalizer = scale / all.sum;
  ForChunks(team, op.logits_inout.cols, [&](const Chunk& c) {
    float v[kChunk];
    LoadFrom(op.logits_inout, c, v);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float slope = op.softcap > 0 ? CapSlope(v[i], op.softcap) : 1.0f;
      v[i] = normalizer * expf(v[i] - all.largest) * slope;
      if (c.col + i == target) v[i] -= scale * slope;
    }
    StoreTo(op.logits_inout, c, v);
  });
}

}  // namespace

void Queue(Stream stream, const ops::CrossEntropy& op) {
  if (op.logits_inout.cols == 0) return;
  Launch(op.kName, CrossEntropyKernel, static_cast<unsigned>(op.logits_inout.rows), kLossThreads, 0,
         stream, op);
}

}  // namespace qlora::cuda

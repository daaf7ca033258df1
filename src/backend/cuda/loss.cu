// Cross entropy: a block for each row of logits.
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

constexpr int kLossThreads = 512;

// The largest of some values, the sum of exp(value - largest), and the sum of the values.
struct LogSum {
  float largest, sum, total;
};
struct JoinLogSums {
  GPU_INLINE LogSum operator()(const LogSum& a, const LogSum& b) const {
    const float largest = fmaxf(a.largest, b.largest);
    const float total = a.total + b.total;
    // Threads without a column, or with logits of -infinity alone: -infinity - -infinity would be
    // NaN.
    if (largest == -INFINITY) return {largest, 0.0f, total};
    return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest), total};
  }
};

// 1 - (c / softcap)^2, the slope of the cap at the capped value c.
GPU_INLINE float CapSlope(float c, float softcap) {
  const float ratio = c / softcap;
  return 1.0f - ratio * ratio;
}

// Caps the logits of the row and returns the sums of all of them.
GPU_INLINE LogSum CapAndSum(const ops::CrossEntropy& op, const Team& team) {
  LogSum mine = {-INFINITY, 0.0f, 0.0f};
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
    float total = mine.total;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < c.count) {
        sum += expf(v[i] - largest);
        total += v[i];
      }
    }
    mine = {largest, sum, total};
  });
  GPU_SHARED(LogSum, partial, [kLossThreads / kWarp]);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const LogSum other = {__shfl_xor_sync(kAllLanes, mine.largest, step),
                          __shfl_xor_sync(kAllLanes, mine.sum, step),
                          __shfl_xor_sync(kAllLanes, mine.total, step)};
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
  const auto cols = static_cast<float>(op.logits_inout.cols);
  if (team.rank == 0) {
    const float lse = all.largest + logf(all.sum);
    float logprob = at_target - lse;
    if (op.smoothing > 0) {
      logprob = (1.0f - op.smoothing) * logprob + op.smoothing * (all.total / cols - lse);
    }
    Float(op.logprob, 0, team.row) = logprob;
    if (op.hit.cols > 0) Float(op.hit, 0, team.row) = at_target >= all.largest ? 1.0f : 0.0f;
  }
  // Without row_scale no gradient is asked for, as in evaluation.
  if (op.row_scale.cols == 0) return;
  __syncthreads();  // the target has been read
  const float scale = Float(op.row_scale, 0, team.row);
  const float normalizer = scale / all.sum;
  const float uniform = scale * op.smoothing / cols;
  const float at_label = (1.0f - op.smoothing) * scale;
  ForChunks(team, op.logits_inout.cols, [&](const Chunk& c) {
    float v[kChunk];
    LoadFrom(op.logits_inout, c, v);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float slope = op.softcap > 0 ? CapSlope(v[i], op.softcap) : 1.0f;
      v[i] = (normalizer * expf(v[i] - all.largest) - uniform) * slope;
      if (c.col + i == target) v[i] -= at_label * slope;
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

// Root mean square norm and the dot products of rows.
#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) RmsNormKernel(ops::RmsNorm op, int team_size) {
  const Team team = TeamOf(team_size);
  if (team.row >= op.x.rows) return;  // whole warps: blocks that are one team have a row each
  float sum = 0;
  ForChunks(team, op.x.cols, [&](const Chunk& c) {
    float x[kChunk];
    Load(op.x, c, x);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += x[i] * x[i];
  });
  sum = TeamJoin(team, sum, Plus());
  // Not rsqrtf, which is an approximation: rstd is kept, and its error would enter both passes.
  const float rstd = 1.0f / sqrtf(sum / static_cast<float>(op.x.cols) + op.epsilon);
  ForChunks(team, op.x.cols, [&](const Chunk& c) {
    float x[kChunk], w[kChunk];
    Load(op.x, c, x);
    Load(op.weight, {0, c.col, c.count}, w);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = w[i] * x[i] * rstd;
    StoreTo(op.y, c, x);
  });
  if (team.rank == 0) Float(op.rstd, 0, team.row) = rstd;
}

__global__ void __launch_bounds__(kThreads)
    RmsNormBackwardKernel(ops::RmsNormBackward op, int team_size) {
  const Team team = TeamOf(team_size);
  if (team.row >= op.x.rows) return;
  float sum = 0;
  ForChunks(team, op.x.cols, [&](const Chunk& c) {
    float dy[kChunk], x[kChunk], w[kChunk];
    Load(op.dy, c, dy);
    Load(op.x, c, x);
    Load(op.weight, {0, c.col, c.count}, w);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += w[i] * dy[i] * x[i];
  });
  sum = TeamJoin(team, sum, Plus());
  const float rstd = Float(op.rstd, 0, team.row);
  // dx = r w dy - x r^3 mean(w dy x), with r = rstd: r itself depends on x,
  // dr/dx_i = -r^3 x_i / D.
  const float factor = rstd * rstd * rstd * (sum / static_cast<float>(op.x.cols));
  // dx may be dy: each thread reads its chunk before it writes it.
  ForChunks(team, op.x.cols, [&](const Chunk& c) {
    float dy[kChunk], x[kChunk], w[kChunk], old[kChunk] = {};
    Load(op.dy, c, dy);
    Load(op.x, c, x);
    Load(op.weight, {0, c.col, c.count}, w);
    if (op.store == Store::kAdd) LoadFrom(op.dx, c, old);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) dy[i] = old[i] + (rstd * w[i] * dy[i] - x[i] * factor);
    StoreTo(op.dx, c, dy);
  });
}

__global__ void __launch_bounds__(kThreads) RowDotsKernel(ops::RowDots op, int team_size) {
  const Team team = TeamOf(team_size);
  if (team.row >= op.x.rows) return;
  float sum = 0;
  ForChunks(team, op.x.cols, [&](const Chunk& c) {
    float x[kChunk], y[kChunk];
    Load(op.x, c, x);
    Load(op.y, c, y);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum += x[i] * y[i];
  });
  sum = TeamJoin(team, sum, Plus());
  if (team.rank == 0) Float(op.dots, 0, team.row) = sum;
}

}  // namespace

void Queue(Stream stream, const ops::RmsNorm& op) {
  // A warp per row while its 32 lanes have at most four chunks each; longer rows keep a block busy.
  const int team = TeamSize(op.x.cols);
  Launch(op.kName, RmsNormKernel, TeamBlocks(op.x.rows, team), kThreads, 0, stream, op, team);
}
void Queue(Stream stream, const ops::RmsNormBackward& op) {
  const int team = TeamSize(op.x.cols);
  Launch(op.kName, RmsNormBackwardKernel, TeamBlocks(op.x.rows, team), kThreads, 0, stream, op,
         team);
}
void Queue(Stream stream, const ops::RowDots& op) {
  const int team = TeamSize(op.x.cols);
  Launch(op.kName, RowDotsKernel, TeamBlocks(op.x.rows, team), kThreads, 0, stream, op, team);
}

}  // namespace qlora::cuda

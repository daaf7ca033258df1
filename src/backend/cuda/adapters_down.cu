// u = x A^T of the adapters of a group for few rows, in one launch and without a converted copy of
// A.
#include <algorithm>

#include "backend/cuda/few_rows.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

// Adapters that read the same x. An argument of a kernel, so of a fixed size.
constexpr int kMostAdapters = 4;
struct Adapters {
  ConstMatrixView x;                      // (N, I)
  ConstMatrixView a[kMostAdapters] = {};  // (R, I) float32
  MatrixView u[kMostAdapters] = {};       // (N, R) float32
};

// A block for row r of the A of all adapters, and eight rows of x.
constexpr int kDownRows = 8;
__global__ void __launch_bounds__(kThreads) AdaptersDownKernel(Adapters adapters) {
  std::int64_t r = blockIdx.x;
  int which = 0;
  for (; r >= adapters.a[which].rows; ++which) r -= adapters.a[which].rows;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kDownRows;
  const std::int64_t left = adapters.x.rows - first;
  const int rows = left < kDownRows ? static_cast<int>(left) : kDownRows;
  float sum[kDownRows] = {};
  ForChunks(TeamOf(kThreads), adapters.x.cols, [&](const Chunk& c) {
    float a[kChunk], x[kChunk];
    Load(adapters.a[which], {r, c.col, c.count}, a);
#pragma unroll
    for (int n = 0; n < kDownRows; ++n) {
      if (n >= rows) continue;
      Load(adapters.x, {first + n, c.col, c.count}, x);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sum[n] += x[i] * a[i];
    }
  });
#pragma unroll
  for (int n = 0; n < kDownRows; ++n) {
    if (n >= rows) continue;  // for all threads
    const float all = BlockJoin<kThreads>(sum[n], Plus());
    if (threadIdx.x == 0) Float(adapters.u[which], first + n, r) = all;
  }
}

}  // namespace

void QueueAdaptersDown(Stream stream, const ops::Linear& op) {
  const auto row_blocks = static_cast<unsigned>((op.x.rows + kDownRows - 1) / kDownRows);
  for (std::size_t begin = 0; begin < op.linears.size(); begin += kMostAdapters) {
    Adapters adapters = {.x = op.x};
    std::int64_t ranks = 0;
    for (std::size_t l = begin; l < std::min(begin + kMostAdapters, op.linears.size()); ++l) {
      adapters.a[l - begin] = op.linears[l].lora.a;
      adapters.u[l - begin] = op.outputs[l].u;
      ranks += op.linears[l].lora.a.rows;
    }
    Launch("AdaptersDown", AdaptersDownKernel, dim3(static_cast<unsigned>(ranks), row_blocks),
           kThreads, 0, stream, adapters);
  }
}

}  // namespace qlora::cuda

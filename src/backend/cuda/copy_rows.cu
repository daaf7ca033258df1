// Ops that copy, gather, scale and add rows: embeddings, routing of experts, NEFTune noise.
#include "backend/cuda/kernels.h"
#include "backend/cuda/philox.h"
#include "backend/cuda/row_reduce.h"

namespace qlora::cuda {
namespace {

// y(n) = [y(n) +] scale * scales(n) * x(from(n)).
struct RowCopy {
  ConstMatrixView x;  // of any frozen type
  MatrixView y;
  const std::int32_t* from = nullptr;  // null: n
  const float* scales = nullptr;       // null: 1
  float scale = 1;
  bool add = false;
};

__global__ void __launch_bounds__(kThreads) CopyRowsKernel(RowCopy copy, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  const std::int64_t from = copy.from == nullptr ? c.row : copy.from[c.row];
  const float scale = copy.scales == nullptr ? copy.scale : copy.scales[c.row];
  float v[kChunk], old[kChunk];
  LoadFrozen(copy.x, {from, c.col, c.count}, v);
  if (copy.add) LoadFrom(copy.y, c, old);
#pragma unroll
  // Adding never scales: no op asks for both.
  for (int i = 0; i < kChunk; ++i) v[i] = copy.add ? old[i] + v[i] : scale * v[i];
  StoreTo(copy.y, c, v);
}

void CopyRows(Stream stream, const char* name, const RowCopy& copy) {
  const Tiling tiling = TilingOf(copy.y.rows, copy.y.cols);
  Launch(name, CopyRowsKernel, tiling.blocks(), kThreads, 0, stream, copy, tiling);
}

// y_acc(to(n)) += scale * x(n), equal rows in the order of n.
struct RowScatter {
  ConstMatrixView x;  // (rows, cols)
  const std::int32_t* to = nullptr;
  float scale = 1;
  MatrixView y_acc;
};

// A block of one warp for row n and 256 columns of it: the first n of those with the same target
// adds them all, in their order, and the others have nothing to do.
__global__ void __launch_bounds__(kWarp) ScatterRowsKernel(RowScatter scatter) {
  const int lane = static_cast<int>(threadIdx.x);
  const auto rows = static_cast<int>(scatter.x.rows);
  const auto first = static_cast<int>(blockIdx.x);
  const std::int32_t target = scatter.to[first];
  for (int n0 = 0; n0 < first; n0 += kWarp) {
    const bool same = n0 + lane < first && scatter.to[n0 + lane] == target;
    // An earlier row has the same target and does this row's work. The warp agrees by the ballot,
    // so that it returns as a whole. Rows are few (tokens of a batch), so comparing all pairs costs
    // little compared with the D columns that each row adds.
    if (__ballot_sync(kAllLanes, same) != 0) return;
  }
  Chunk c = {target, (static_cast<std::int64_t>(blockIdx.y) * kWarp + lane) * kChunk, 0};
  if (c.col < scatter.x.cols) {
    c.count = scatter.x.cols - c.col < kChunk ? static_cast<int>(scatter.x.cols - c.col) : kChunk;
  }
  float sum[kChunk] = {}, v[kChunk];
  if (c.count > 0) LoadFrom(scatter.y_acc, c, sum);
  for (int n0 = first / kWarp * kWarp; n0 < rows; n0 += kWarp) {
    const int n = n0 + lane;
    // votes of 32 rows: 0 1 0 0 1 0 ...   each bit is a row to add, lowest first. No row before the
    // first has its target, so `n >= first` only spares a load.
    const bool same = n >= first && n < rows && scatter.to[n] == target;
    for (unsigned left = __ballot_sync(kAllLanes, same); left != 0; left &= left - 1) {
      if (c.count == 0) continue;
      Load(scatter.x, {n0 + __ffs(static_cast<int>(left)) - 1, c.col, c.count}, v);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sum[i] += scatter.scale * v[i];
    }
  }
  if (c.count > 0) StoreTo(scatter.y_acc, c, sum);
}

void ScatterRows(Stream stream, const char* name, const RowScatter& scatter) {
  constexpr std::int64_t kColumns = kWarp * kChunk;
  const std::int64_t columns = (scatter.x.cols + kColumns - 1) / kColumns;
  const dim3 grid(static_cast<unsigned>(scatter.x.rows), static_cast<unsigned>(columns));
  Launch(name, ScatterRowsKernel, grid, kWarp, 0, stream, scatter);
}

__global__ void __launch_bounds__(kThreads) ZeroKernel(MatrixView y, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  const float zeros[kChunk] = {};
  if (c.count > 0) StoreTo(y, c, zeros);
}

__global__ void __launch_bounds__(kThreads) AddNoiseKernel(ops::AddNoise op, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  const float magnitude = Float(op.magnitude, 0, c.row);
  float u[kChunk], y[kChunk];
  UniformChunk(op.key, static_cast<std::uint64_t>(c.row * op.y_acc.cols + c.col), u);
  LoadFrom(op.y_acc, c, y);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) y[i] += magnitude * (2 * u[i] - 1);
  StoreTo(op.y_acc, c, y);
}

// A warp per row. Lanes read 32 values at a time and all add them in order.
__global__ void __launch_bounds__(kWarp) SumRowsKernel(ops::SumRows op) {
  const std::int64_t k = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  double& out = static_cast<double*>(op.sums_acc.data)[k];
  double sum = out;
  for (std::int64_t n0 = 0; n0 < op.values.cols; n0 += kWarp) {
    const float mine = n0 + lane < op.values.cols ? Float(op.values, k, n0 + lane) : 0.0f;
    // All lanes add all values in the order of the CPU; sums of losses have the same bits on both
    // devices.
    for (int i = 0; i < kWarp; ++i) {
      const float value = __shfl_sync(kAllLanes, mine, i);
      if (n0 + i < op.values.cols) sum += static_cast<double>(value);
    }
  }
  __syncwarp();
  if (lane == 0) out = sum;
}

const float* Floats(const ConstMatrixView& m) { return static_cast<const float*>(m.data); }

}  // namespace

// Tables are dense: Backend::Reads refuses blocks, and no model has a table in 4 bits.
void Queue(Stream stream, const ops::Embed& op) {
  CopyRows(stream, op.kName,
           {.x = op.table.dense, .y = op.y, .from = op.ids.data, .scale = op.scale});
}
void Queue(Stream stream, const ops::Copy& op) {
  CopyRows(stream, op.kName, {.x = op.x, .y = op.y});
}
void Queue(Stream stream, const ops::Add& op) {
  CopyRows(stream, op.kName, {.x = op.x, .y = op.y_acc, .add = true});
}
void Queue(Stream stream, const ops::GatherRows& op) {
  CopyRows(stream, op.kName, {.x = op.x, .y = op.y, .from = op.rows.data});
}
void Queue(Stream stream, const ops::ScaleRows& op) {
  CopyRows(stream, op.kName, {.x = op.x, .y = op.y, .scales = Floats(op.scale)});
}
void Queue(Stream stream, const ops::EmbedBackward& op) {
  ScatterRows(stream, op.kName,
              {.x = op.dy, .to = op.ids.data, .scale = op.scale, .y_acc = op.d_table_acc});
}
void Queue(Stream stream, const ops::ScatterAddRows& op) {
  ScatterRows(stream, op.kName, {.x = op.x, .to = op.rows.data, .y_acc = op.y_acc});
}
void Queue(Stream stream, const ops::Zero& op) {
  const Tiling tiling = TilingOf(op.y.rows, op.y.cols);
  Launch(op.kName, ZeroKernel, tiling.blocks(), kThreads, 0, stream, op.y, tiling);
}
void Queue(Stream stream, const ops::AddNoise& op) {
  const Tiling tiling = TilingOf(op.y_acc.rows, op.y_acc.cols);
  Launch(op.kName, AddNoiseKernel, tiling.blocks(), kThreads, 0, stream, op, tiling);
}
void Queue(Stream stream, const ops::SumRows& op) {
  Launch(op.kName, SumRowsKernel, static_cast<unsigned>(op.values.rows), kWarp, 0, stream, op);
}

}  // namespace qlora::cuda

// Updates of the optimizers and the sum of squares, over contiguous float32 ranges.
#include <cmath>

#include "backend/cuda/kernels.h"
#include "backend/cuda/row_reduce.h"
#include "quant/dynamic_map.h"

namespace qlora::cuda {
namespace {

// UpdateArgs in float32, with the corrections of AdamW for the step.
struct Factors {
  UpdateRule rule;
  float rate, root, decay, scale, beta1, beta2, rest1, rest2, epsilon, weight_decay;
};

Factors FactorsOf(const UpdateArgs& args) {
  // By the host, in float64: 1 - beta2^t of small t is a difference of nearly equal numbers.
  const auto step = static_cast<double>(args.step);
  const bool adam = args.rule == UpdateRule::kAdamW;
  const double rate =
      adam ? args.learning_rate / (1 - std::pow(args.beta1, step)) : args.learning_rate;
  return {.rule = args.rule,
          .rate = static_cast<float>(rate),
          .root = static_cast<float>(std::sqrt(1 - std::pow(args.beta2, step))),
          .decay = static_cast<float>(1 - args.learning_rate * args.weight_decay),
          .scale = static_cast<float>(args.gradient_scale),
          .beta1 = static_cast<float>(args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .rest1 = static_cast<float>(1 - args.beta1),
          .rest2 = static_cast<float>(1 - args.beta2),
          .epsilon = static_cast<float>(args.epsilon),
          .weight_decay = static_cast<float>(args.weight_decay)};
}

// reference_optimizer.h defines the formulas.
GPU_INLINE void UpdateOne(const Factors& f, float gradient, float& p, float& m, float& v) {
  const float g = gradient * f.scale;
  if (f.rule == UpdateRule::kAdamW) {
    m = f.beta1 * m + f.rest1 * g;
    v = f.beta2 * v + f.rest2 * g * g;
    p = f.decay * p - f.rate * m / (sqrtf(v) / f.root + f.epsilon);
  } else if (f.rule == UpdateRule::kLion) {
    const float blend = f.beta1 * m + f.rest1 * g;
    const float sign = blend > 0 ? 1.0f : blend < 0 ? -1.0f : 0.0f;
    p = f.decay * p - f.rate * sign;
    m = f.beta2 * m + f.rest2 * g;
  } else {
    // Coupled decay: it enters m, as in torch.optim.SGD. AdamW and Lion decay p directly.
    m = f.beta1 * m + g + f.weight_decay * p;
    p -= f.rate * m;
  }
}

// Moments in float32, or none.
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(Factors f, ConstMatrixView gradient, MatrixView param, MatrixView m_inout,
                 MatrixView v_inout, Tiling tiling) {
  const Chunk c = ChunkOf(tiling);
  if (c.count == 0) return;
  float g[kChunk], p[kChunk], m[kChunk] = {}, v[kChunk] = {};
  Load(gradient, c, g);
  LoadFrom(param, c, p);
  if (m_inout.cols > 0) LoadFrom(m_inout, c, m);
  if (v_inout.cols > 0) LoadFrom(v_inout, c, v);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) UpdateOne(f, g[i], p[i], m[i], v[i]);
  StoreTo(param, c, p);
  if (m_inout.cols > 0) StoreTo(m_inout, c, m);
  if (v_inout.cols > 0) StoreTo(v_inout, c, v);
}

// ---- Moments in 8 bits: a block of threads for each block of 256 values.

static_assert(kDynamicBlock == kThreads);
constexpr int kMapSize = 256;

GPU_INLINE float Midpoint(const float* map, int k) { return (map[k] + map[k + 1]) / 2; }

// DynamicMap::Nearest: counts midpoints below x by bisection; on a midpoint, the even neighbour.
GPU_INLINE int NearestCode(const float* map, float x) {
  int below = 0;
  for (int half = kMapSize / 2; half > 0; half /= 2) {
    // Eight comparisons for 255 midpoints. The last midpoint that is read lies between entries 254
    // and 255.
    if (Midpoint(map, below + half - 1) < x) below += half;
  }
  if (below < kMapSize - 1 && Midpoint(map, below) == x && below % 2 == 1) ++below;
  return below;
}

// DynamicMap::Encode for one value of a block with the given scale.
GPU_INLINE std::uint8_t MomentCode(const float* map, float x, float scale) {
  const int zero = NearestCode(map, 0.0f);
  // Rounding to nearest is asked for by name (__fdiv_rn): compiled with fast division, codes would
  // differ from the codes of the CPU, and so would training that is resumed on another device.
  int code = scale > 0 ? NearestCode(map, __fdiv_rn(x, scale)) : zero;
  // A negative value never takes the code of 0. Neither does a positive one in the unsigned map:
  // the step is divided by the root of the second moment, and by epsilon alone where that is 0.
  if (x < 0 && code >= zero) --code;
  if (x > 0 && code == zero && zero == 0) ++code;
  return static_cast<std::uint8_t>(code);
}

// A moment as the kernel of coded moments reads it.
struct MomentPart {
  std::uint8_t* codes = nullptr;  // null: float32 values, or none
  float* scales = nullptr;
  float* values = nullptr;
  const float* map = nullptr;
};

GPU_INLINE float LoadMoment(const MomentPart& part, const float* map, std::int64_t i) {
  if (part.codes != nullptr) return __fmul_rn(map[part.codes[i]], part.scales[blockIdx.x]);
  return part.values != nullptr ? part.values[i] : 0.0f;
}

// All threads of the block call it; `inside`: this one has a value.
GPU_INLINE void StoreMoment(const MomentPart& part, const float* map, std::int64_t i, bool inside,
                            float value) {
  if (part.codes == nullptr) {
    if (inside && part.values != nullptr) part.values[i] = value;
    return;
  }
  // The maximum is the same in every order of the threads.
  const float scale = BlockJoin<kThreads>(inside ? fabsf(value) : 0.0f, Larger());
  if (inside) part.codes[i] = MomentCode(map, value, scale);
  if (threadIdx.x == 0) part.scales[blockIdx.x] = scale;
}

__global__ void __launch_bounds__(kThreads)
    UpdateCodedKernel(Factors f, const float* gradient, float* param, MomentPart m_part,
                      MomentPart v_part, std::int64_t n) {
  GPU_SHARED(float, m_map, [kMapSize]);
  GPU_SHARED(float, v_map, [kMapSize]);
  m_map[threadIdx.x] = m_part.map[threadIdx.x];
  v_map[threadIdx.x] = v_part.map[threadIdx.x];
  __syncthreads();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool inside = i < n;
  float m = 0, v = 0;
  if (inside) {
    m = LoadMoment(m_part, m_map, i);
    v = LoadMoment(v_part, v_map, i);
    UpdateOne(f, gradient[i], param[i], m, v);
  }
  // The scales have been read. StoreMoment joins a block before it stores one, which waits as well;
  // the barrier here does not depend on that.
  __syncthreads();
  StoreMoment(m_part, m_map, i, inside, m);
  StoreMoment(v_part, v_map, i, inside, v);
}

bool IsCoded(const Moment& m) { return !m.values.empty() && m.values.dtype == DType::kU8; }

MomentPart PartOf(const Moment& m, const float* map) {
  if (m.values.empty()) return {.map = map};
  if (!IsCoded(m)) return {.values = static_cast<float*>(m.values.data), .map = map};
  return {.codes = static_cast<std::uint8_t*>(m.values.data),
          .scales = static_cast<float*>(m.scales.data),
          .map = map};
}

// ---- Sum of squares: partial sums of equal strides, then their sum, in an order that depends on
// n.

__global__ void __launch_bounds__(kThreads)
    PartialSquaresKernel(const float* x, std::int64_t n, double* partial) {
  double sum = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
#pragma unroll 1  // to unroll it, the compiler would divide by the step
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += step) {
    const double value = static_cast<double>(x[i]);
    sum += value * value;
  }
  sum = BlockJoin<kThreads>(sum, Plus());
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    SumPartialsKernel(const double* partial, int count, double* sum) {
  static_assert(kMostPartialSums == kThreads);
  const int tid = static_cast<int>(threadIdx.x);
  const double all = BlockJoin<kThreads>(tid < count ? partial[tid] : 0.0, Plus());
  if (tid == 0) *sum = all;
}

}  // namespace

void Queue(Stream stream, const ops::Update& op, const MomentMaps& maps) {
  const Factors factors = FactorsOf(op.args);
  const std::int64_t n = op.gradient.cols;
  if (!IsCoded(op.m_inout) && !IsCoded(op.v_inout)) {
    const Tiling tiling = TilingOf(1, n);
    Launch(op.kName, UpdateKernel, tiling.blocks(), kThreads, 0, stream, factors, op.gradient,
           op.param_inout, op.m_inout.values, op.v_inout.values, tiling);
    return;
  }
  const auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  Launch(op.kName, UpdateCodedKernel, blocks, kThreads, 0, stream, factors,
         static_cast<const float*>(op.gradient.data), static_cast<float*>(op.param_inout.data),
         PartOf(op.m_inout, maps.both_signs), PartOf(op.v_inout, maps.positive), n);
}

void Queue(Stream stream, const ops::SumOfSquares& op, double* partial) {
  const std::int64_t n = op.x.cols;
  constexpr std::int64_t kPerBlock = kThreads * 16;
  std::int64_t blocks = (n + kPerBlock - 1) / kPerBlock;
  // The number of blocks follows from n, not from the multiprocessors of the GPU: all GPUs give one
  // sum.
  if (blocks > kMostPartialSums) blocks = kMostPartialSums;
  Launch(op.kName, PartialSquaresKernel, static_cast<unsigned>(blocks), kThreads, 0, stream,
         static_cast<const float*>(op.x.data), n, partial);
  Launch("SumPartials", SumPartialsKernel, 1, kThreads, 0, stream, partial,
         static_cast<int>(blocks), static_cast<double*>(op.sum.data));
}

}  // namespace qlora::cuda

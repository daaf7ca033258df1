#include "backend/cuda/gpu.h"
#include "gpu_host/mistakes.h"

namespace gpu_host {
namespace {

using qlora::cuda::CpAsync16;
using qlora::cuda::CpAsyncCommit;
using qlora::cuda::CpAsyncWait;
using qlora::cuda::Launch;

constexpr int kN = 64;
constexpr unsigned kAll = ~0u;

// A reversed copy through shared memory, and a sum over the block, with each mistake at its place.
__global__ void MistakeKernel(Mistake mistake, const float* in, float* out) {
  GPU_DYNAMIC_SHARED(raw);
  GPU_SHARED(float, partial, [2]);
  GPU_SHARED(int, count);
  GPU_SHARED(float, pass, [kN]);
  const auto is = [&](Mistake other) { return mistake == other; };
  float* copy = reinterpret_cast<float*>(raw);
  const int i = static_cast<int>(threadIdx.x);
  const int lane = i % 32;
  const bool first_half = i < kN / 2;

  // Sixteen threads copy four values each.
  if (i < kN / 4) {
    CpAsync16(copy + 4 * i, in + 4 * i, 16);
    CpAsyncCommit();
    if (is(Mistake::kCopyNotWaitedFor)) {
      CpAsyncWait<1>();
    } else {
      CpAsyncWait<0>();
    }
  }
  if (i == 0) count = 0;
  if (is(Mistake::kReturnBeforeBarrier) && !first_half) return;
  if (is(Mistake::kDifferentBarriers) && first_half) {
    __syncthreads();
  } else if (!is(Mistake::kCopyWithoutBarrier)) {
    __syncthreads();
  }
  const float value = copy[kN - 1 - i];

  if (is(Mistake::kLaneMissing) && lane == 5) return;
  float sum = in[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (is(Mistake::kShuffleOutsideMask) && lane < 16) sum = __shfl_xor_sync(0xffffu, sum, 16);
  if (lane == 0 && !(is(Mistake::kUnwrittenShared) && i > 0)) partial[i / 32] = sum;
  if (is(Mistake::kCountWithoutAtomic)) {
    ++count;
  } else {
    atomicAdd(&count, 1);
  }
  if (!is(Mistake::kNoBarrierAfterWrite)) __syncthreads();
  float both = partial[0] + partial[1];
  if (!is(Mistake::kNoBarrierBeforeReuse)) __syncthreads();
  if (lane == 0) partial[i / 32] = 2 * both;
  __syncthreads();
  both = partial[first_half ? 0 : 1];

  pass[i] = both;
  if (!is(Mistake::kNoSyncWarp)) __syncwarp();
  both = pass[i ^ 1];
  float* mine = out + blockIdx.x * kN;
  if (is(Mistake::kUnwrittenGlobal)) both += mine[i];
  mine[is(Mistake::kOutOfBounds) && blockIdx.x == 1 ? i + 1 : i] = value + both;
  if (is(Mistake::kBlocksShareASum) && i == 0) out[0] += 1;
}

__global__ void MatrixUnitKernel(const qlora::BFloat16* a, const qlora::BFloat16* b, float* c) {
  using qlora::BFloat16;
  GPU_SHARED(BFloat16, tile_a, [16][24]);
  GPU_SHARED(BFloat16, tile_b, [16][24]);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 16 * 16; i += 32) {
    tile_a[i / 16][i % 16] = a[i];
    tile_b[i / 16][i % 16] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : BFloat16{0};
  }
  __syncwarp();
  std::uint32_t fragment_a[4], fragment_b[4];
  qlora::cuda::LdMatrixX4(fragment_a, &tile_a[lane % 16][lane / 16 * 8]);
  qlora::cuda::LdMatrixX4Trans(fragment_b, &tile_b[lane % 16][lane / 16 * 8]);
  float d[4] = {};
  qlora::cuda::MmaBf16(d, fragment_a, fragment_b[0], fragment_b[1]);
  for (int r = 0; r < 4; ++r) {
    c[(lane / 4 + 8 * (r / 2)) * 8 + 2 * (lane % 4) + r % 2] = d[r];
  }
}

}  // namespace

void QueueMistake(Mistake mistake, const float* in, float* out) {
  std::size_t shared = kN * sizeof(float);
  if (mistake == Mistake::kSharedTooSmall) shared -= 16;
  if (mistake == Mistake::kTooMuchShared) shared = 100 << 10;
  // What is left by the dynamic part does not hold the variables.
  if (mistake == Mistake::kTooMuchSharedTogether) shared = (99 << 10) - 16;
  Launch("Mistake", MistakeKernel, 2, kN, shared, nullptr, mistake, in, out);
}

void QueueMatrixUnit(const qlora::BFloat16* a, const qlora::BFloat16* b, float* c) {
  Launch("MatrixUnit", MatrixUnitKernel, 1, 32, 0, nullptr, a, b, c);
}

}  // namespace gpu_host

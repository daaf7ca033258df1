// Kernels with one mistake each, by which the model itself is tested.
#ifndef QLORA_TESTS_GPU_HOST_MISTAKES_H_
#define QLORA_TESTS_GPU_HOST_MISTAKES_H_

#include <cstdint>

#include "qlora/tensor.h"

namespace gpu_host {

enum class Mistake : std::uint8_t {
  kNone,
  kReturnBeforeBarrier,
  kDifferentBarriers,
  kLaneMissing,
  kShuffleOutsideMask,
  kNoBarrierAfterWrite,
  kNoBarrierBeforeReuse,
  kUnwrittenShared,
  kUnwrittenGlobal,
  kOutOfBounds,
  kSharedTooSmall,
  kCountWithoutAtomic,
  kBlocksShareASum,
  kNoSyncWarp,
  kCopyNotWaitedFor,
  kCopyWithoutBarrier,
  kTooMuchShared,
  kTooMuchSharedTogether,
};

// 2 blocks of 64 threads that read `in` (64) and write `out` (128): without a mistake, out[i] of
// block b is in[63 - i % 64] + 2 * (the sum of in).
void QueueMistake(Mistake mistake, const float* in, float* out);

// c(16, 8) = a(16, 16) b(16, 8), by ldmatrix and the matrix unit; b is stored row by row.
void QueueMatrixUnit(const qlora::BFloat16* a, const qlora::BFloat16* b, float* c);

}  // namespace gpu_host

#endif  // QLORA_TESTS_GPU_HOST_MISTAKES_H_

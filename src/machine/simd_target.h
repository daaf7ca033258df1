// The instruction set that the kernels of this process use.
//
// Kernels are compiled for several instruction sets. The fastest that this machine has is chosen at
// run time, once per process; the environment variable QLORA_TARGET forces one. context.cc has the
// threads behind Context. pool_thread.h describes how a waiting thread lends its core to a worker
// that another process keeps from running. processor.h gives the reason why Intel's processors with
// AVX512_BF16 compute in float32.
#ifndef QLORA_MACHINE_SIMD_TARGET_H_
#define QLORA_MACHINE_SIMD_TARGET_H_

#include <cstdint>
#include <span>
#include <string>

namespace qlora {

// Ascending: each includes the ones before it. kAvx512Bf16 adds the bfloat16 dot product, kAmx
// tiles of bfloat16, in place of that product, for prepacked weights. Processors other than x86-64
// have kScalar alone, which there means the vectors that they always have.
enum class SimdTarget : std::uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// Returns "scalar", "avx2", "avx512", "avx512bf16", "amx".
const char* NameOf(SimdTarget target);

// Returns the targets that this machine has, ascending.
std::span<const SimdTarget> SimdTargets();

// Returns the fastest target: the last one, but kAvx512 where the bfloat16 dot product multiplies
// less than float32 does.
SimdTarget BestSimdTarget();

// Returns the target in use: the best one, unless the environment variable QLORA_TARGET names
// another. Highway's dispatch follows from the first call on; every Context makes it. Errors
// (InvalidInput): QLORA_TARGET is not a name, or this machine lacks the target.
SimdTarget ActiveSimdTarget();

// Returns a warning where this process computes with scalar kernels on x86-64, else an empty text.
std::string WarnOfScalarKernels();

// Changes the target in use to one of SimdTargets(). For tests; no kernel may be running.
void SetSimdTarget(SimdTarget target);

}  // namespace qlora

#endif  // QLORA_MACHINE_SIMD_TARGET_H_

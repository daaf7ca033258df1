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

// Ascending: each includes the ones before it that its architecture has.
//   x86-64    kScalar, kAvx2, kAvx512; kAvx512Bf16 adds the bfloat16 dot product, kAmx tiles of
//             bfloat16
//   aarch64   kScalar, which there means NEON; kNeonDot adds the dot product of bytes (sdot),
//             kNeonMatrix the products of matrices of bfloat16 and of bytes (bfmmla, usmmla)
enum class SimdTarget : std::uint8_t {
  kScalar,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmx,
  kNeonDot,
  kNeonMatrix
};

// Returns "scalar", "avx2", "avx512", "avx512bf16", "amx"; on aarch64 "neon", "neondot",
// "neonmatrix".
const char* NameOf(SimdTarget target);

// Whether kernels of the target multiply pairs of bfloat16, others widen them to float32.
inline bool MultipliesBfloat16(SimdTarget target) {
  return target == SimdTarget::kAvx512Bf16 || target == SimdTarget::kAmx ||
         target == SimdTarget::kNeonMatrix;
}

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

// The instructions for products in 8 bits, ascending in speed. Their results are the same bits.
enum class Int8Dots : std::uint8_t {
  kFloat,   // those for float32, which every target has
  kMadd,    // vpmaddwd: codes are widened to 16 bits
  kVnni,    // vpdpbusd
  kAmx,     // tdpbssd
  kSdot,    // of aarch64
  kUsmmla,  // of aarch64
};

// Returns "float", "madd", "vnni", "amx", "sdot", "usmmla".
const char* NameOf(Int8Dots dots);

// True where this machine has the instructions and `target` may use them.
bool HasInt8Dots(SimdTarget target, Int8Dots dots);

// The fastest of the target in use, or none that is faster than what QLORA_TARGET names behind a
// plus, as in avx2+madd. Errors (InvalidInput): that is not a name.
Int8Dots ActiveInt8Dots();

}  // namespace qlora

#endif  // QLORA_MACHINE_SIMD_TARGET_H_

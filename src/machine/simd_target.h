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
#include <string_view>
#include <vector>

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

// Returns a warning where this process computes with scalar kernels on x86-64, else an empty text.
std::string WarnOfScalarKernels();

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

// Returns those that this machine has and a target may use, ascending; kFloat is the first one.
std::vector<Int8Dots> Int8DotsOf(SimdTarget target);

// The kernels of a process. Aligned as an atomic value without a lock needs it.
struct alignas(2) SimdKernels {
  SimdTarget target;
  Int8Dots int8;  // one of Int8DotsOf(target)
};

// Reads TARGET, TARGET+DOTS or +DOTS; what is not named is the best. Errors (InvalidInput): one of
// the two is not a name, this machine lacks the target, or the target DOTS.
SimdKernels ParseSimdKernels(std::string_view text);

// Return what is in use: what the environment variable QLORA_TARGET says, by ParseSimdKernels.
// Highway's dispatch follows from the first call on; every Context makes it. Errors: those of
// ParseSimdKernels.
SimdTarget ActiveSimdTarget();
Int8Dots ActiveInt8Dots();

// Changes what is in use, to a target of this machine and to the fastest instructions of a target.
// For tests; no kernel may be running.
void SetSimdKernels(SimdKernels kernels);
void SetSimdTarget(SimdTarget target);

}  // namespace qlora

#endif  // QLORA_MACHINE_SIMD_TARGET_H_

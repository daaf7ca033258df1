// Kernels for products in 8 bits, one table for each kind of instruction. Int8KernelsOfProcessor
// gives those that the processor has.
#ifndef QLORA_BACKEND_CPU_X86_INT8_KERNELS_H_
#define QLORA_BACKEND_CPU_X86_INT8_KERNELS_H_

#include "backend/cpu/int8/int8_product.h"

namespace qlora::cpu {

const Int8Kernels& AmxKernels();   // amx.cc
const Int8Kernels& VnniKernels();  // vnni.cc
const Int8Kernels& MaddKernels();  // madd.cc

// dot.cc: codes of rows with an offset, without, and without vpdpbusd.
void DotCodes(const CodeDots& p);
void DotSignedCodes(const CodeDots& p);
void DotCodesAsWords(const CodeDots& p);
// Lanes of these: more are faster as panels, with vpdpbusd or tiles sooner.
inline constexpr std::int64_t kMostDots = 8;
inline constexpr std::int64_t kMostVnniDots = 6;

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_X86_INT8_KERNELS_H_

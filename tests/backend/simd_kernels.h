// Each kind of kernel for products in 8 bits that this machine has, as parameters of tests.
#ifndef QLORA_TESTS_BACKEND_SIMD_KERNELS_H_
#define QLORA_TESTS_BACKEND_SIMD_KERNELS_H_

#include <string>
#include <vector>

#include "machine/simd_target.h"

namespace qlora::testing_util {

// Each target with each of its instructions, the fastest of a target last.
inline std::vector<SimdKernels> AllSimdKernels() {
  std::vector<SimdKernels> all;
  for (const SimdTarget target : SimdTargets()) {
    for (const Int8Dots dots : Int8DotsOf(target)) all.push_back({target, dots});
  }
  return all;
}

// Whether products take these where QLORA_TARGET names the target alone.
inline bool AreFastest(const SimdKernels& kernels) {
  return kernels.int8 == Int8DotsOf(kernels.target).back();
}

// "avx2_madd"
inline std::string NameOf(const SimdKernels& kernels) {
  return std::string(qlora::NameOf(kernels.target)) + "_" + qlora::NameOf(kernels.int8);
}

}  // namespace qlora::testing_util

#endif  // QLORA_TESTS_BACKEND_SIMD_KERNELS_H_

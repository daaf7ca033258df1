// In place of x86/ on processors of another architecture, which have no kernels besides those of
// Highway.
#include "backend/cpu/gemm/kernels.h"

namespace qlora::cpu {

const Kernels& Bfloat16Kernels() { return FloatKernels(true); }

const PrepackedKernels* FloatPrepackedKernels(bool /*round*/) { return nullptr; }

}  // namespace qlora::cpu

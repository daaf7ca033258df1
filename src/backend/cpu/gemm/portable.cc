// Processors without a folder next to x86/ have the kernels of Highway alone.
#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/int8/int8_product.h"

namespace qlora::cpu {

const Kernels* Bfloat16Kernels() { return nullptr; }

const PrepackedKernels* FloatPrepackedKernels(bool /*round*/) { return nullptr; }

const PrepackedKernels* TilePrepackedKernels() { return nullptr; }

Int8Multiply VnniMultiply() { return nullptr; }

Int8Multiply AvxVnniMultiply() { return nullptr; }

}  // namespace qlora::cpu

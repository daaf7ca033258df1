// Products of codes with vpdpbusd; contract: int8/int8_product.h.
#ifndef QLORA_BACKEND_CPU_X86_INT8_H_
#define QLORA_BACKEND_CPU_X86_INT8_H_

#include "backend/cpu/int8/int8_product.h"

namespace qlora::cpu {

// int8_vnni.cc. Null where AVX512_VNNI is missing.
Int8Multiply VnniMultiply();
// int8_avxvnni.cc. Null where AVX-VNNI is missing.
Int8Multiply AvxVnniMultiply();

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_X86_INT8_H_

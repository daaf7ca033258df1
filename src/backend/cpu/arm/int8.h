// Products of codes with the instructions of aarch64 for bytes; contract: int8/int8_product.h.
#ifndef QLORA_BACKEND_CPU_ARM_INT8_H_
#define QLORA_BACKEND_CPU_ARM_INT8_H_

#include "backend/cpu/int8/int8_product.h"

namespace qlora::cpu {

// int8_dot.cc, for Int8Dots::kSdot
void MultiplyInt8Dots(const Int8Product& product);
// int8_matrix.cc, for Int8Dots::kUsmmla
void MultiplyInt8Matrices(const Int8Product& product);

}  // namespace qlora::cpu

#endif  // QLORA_BACKEND_CPU_ARM_INT8_H_

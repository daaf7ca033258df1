#include "backend/cpu/x86/int8.h"

namespace qlora::cpu {

std::array<Int8Multiply, 2> Int8Multiplies() { return {VnniMultiply(), AvxVnniMultiply()}; }

}  // namespace qlora::cpu

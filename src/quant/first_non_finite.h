// The search for a NaN or Inf, by all threads.
#ifndef QLORA_QUANT_FIRST_NON_FINITE_H_
#define QLORA_QUANT_FIRST_NON_FINITE_H_

#include <cstdint>

#include "base/matrix.h"
#include "qlora/context.h"

namespace qlora {

// The flat index of the first NaN or Inf of m (F32, F16 or BF16), or -1.
std::int64_t FirstNonFinite(Context& context, const ConstMatrixView& m);

}  // namespace qlora

#endif  // QLORA_QUANT_FIRST_NON_FINITE_H_

// The arithmetic limit of this machine.
#ifndef QLORA_BENCH_BENCH_PEAK_H_
#define QLORA_BENCH_BENCH_PEAK_H_

#include "qlora/context.h"
#include "qlora/tensor.h"

namespace qlora::bench {

// FLOP/s of multiply-adds from registers on all threads of the context, with operands of `dtype`:
// kF32, or kBF16 where the machine multiplies bfloat16 (elsewhere the figure of kF32). The best of
// several short runs, under the instruction set in use (base/simd_target.h).
double MeasurePeakFlops(Context& context, DType dtype);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_PEAK_H_

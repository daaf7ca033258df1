// The arithmetic limit of this machine.
#ifndef QLORA_BENCH_BENCH_PEAK_H_
#define QLORA_BENCH_BENCH_PEAK_H_

#include "qlora/context.h"
#include "qlora/tensor.h"

namespace qlora::bench {

// Runs a few milliseconds of multiply-adds from registers on all threads of the context, with
// operands of `dtype`: kF32, kBF16 where the machine multiplies bfloat16, or kI8 where it has
// vpdpbusd (elsewhere as kF32), under the instruction set in use (machine/simd_target.h). Returns
// the FLOPs.
double MultiplyAdd(Context& context, DType dtype);

// Returns the FLOP/s of the best of several such runs.
double MeasurePeakFlops(Context& context, DType dtype);

}  // namespace qlora::bench

#endif  // QLORA_BENCH_BENCH_PEAK_H_

// The arithmetic limit of this machine: instructions that multiply and add, from registers, each
// waiting for nothing but the sum before it in its own chain.
//
// A loop has at least as many independent chains as the instruction takes cycles, times the
// instructions that start in a cycle, on any processor that has it:
//
//   instruction           cycles  a cycle  chains needed  chains here
//   mulps + addps xmm     4       2        8              12
//   vfmadd231ps ymm       5       2        10             14, of 16 registers
//   vfmadd231ps zmm       4       2        8              24, of 32 registers
//   vdpbf16ps zmm         6       2        12             24
//   vpmaddwd + vpaddd     6       2        12             12, of sums alone the latency is 1
//   vpdpbusd ymm (VEX)    5       2        10             14
//   vpdpbusd zmm          5       2        10             24
//   tdpbf16ps, tdpbusd    52      1/16     4              6, of 8 tiles
//   those of aarch64      4       4        16             24, of 32 registers
//
// Where the latency is just covered, as by 12 chains of vdpbf16ps on Zen 5, the scheduler of the
// processor loses 7 to 9 %.
#ifndef QLORA_MACHINE_PEAK_H_
#define QLORA_MACHINE_PEAK_H_

#include <cstdint>
#include <span>

#include "machine/simd_target.h"
#include "qlora/context.h"
#include "qlora/tensor.h"

namespace qlora {

struct PeakLoop {
  const char* instruction;    // "vfmadd231ps zmm"
  const char* operands;       // "f32", "bf16", "int8"
  double operations;          // of an instruction: a product and a sum are two
  std::int64_t instructions;  // of one call of `run`, which take about a millisecond
  bool (*is_there)();         // this processor and its system have the instruction
  void (*run)();
};

// The loops of this architecture, those for which is_there() is false included.
std::span<const PeakLoop> PeakLoops();

// The loop whose instruction the kernels of `target` multiply with: operands of kBF16 where the
// target has the bfloat16 dot product, of kI8 with the instructions of ActiveInt8Dots(), else of
// kF32, which the others are then widened to.
const PeakLoop& PeakLoopOf(SimdTarget target, DType compute);

// Runs the loop once on each thread. Returns the operations.
double RunPeakLoop(Context& context, const PeakLoop& loop);

// Operations a second of the best of such runs on all threads, in about 50 ms, for the kernels that
// this process uses (ActiveSimdTarget): the others were disturbed.
double MeasurePeak(Context& context, DType compute);

}  // namespace qlora

#endif  // QLORA_MACHINE_PEAK_H_

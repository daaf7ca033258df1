// The loops of aarch64.
#if defined(__aarch64__)
#include <arm_neon.h>

#include <iterator>

#include "machine/peak.h"
#include "machine/processor.h"

namespace qlora {
namespace {

// 4 cycles of latency, at most 4 instructions a cycle.
constexpr int kChains = 24;
constexpr int kRounds = 1 << 18;

// Instructions are written as such: a compiler may put an array of sums into memory. Operands are
// ones: nothing is denormal, and sums stay finite.
#define QLORA_PEAK_LOOP(name, attribute, instruction, ones)                                    \
  attribute void name() {                                                                      \
    uint32x4_t sums[kChains];                                                                  \
    const uint32x4_t x = vdupq_n_u32(ones);                                                    \
    _Pragma("GCC unroll 24") for (uint32x4_t & sum : sums) sum = vdupq_n_u32(0);               \
    for (int i = 0; i < kRounds; ++i) {                                                        \
      _Pragma("GCC unroll 24") for (uint32x4_t & sum : sums) asm volatile(instruction :        \
                                                                          "+w"(sum) : "w"(x)); \
    }                                                                                          \
  }

QLORA_PEAK_LOOP(MultiplyAdd, , "fmla %0.4s, %1.4s, %1.4s", 0x3f800000)
QLORA_PEAK_LOOP(Bfloat16Matrices, __attribute__((target("arch=armv8.2-a+bf16"))),
                "bfmmla %0.4s, %1.8h, %1.8h", 0x3f803f80)
QLORA_PEAK_LOOP(ByteDots, __attribute__((target("arch=armv8.2-a+dotprod"))),
                "sdot %0.4s, %1.16b, %1.16b", 0x01010101)
QLORA_PEAK_LOOP(ByteMatrices, __attribute__((target("arch=armv8.2-a+i8mm"))),
                "usmmla %0.4s, %1.16b, %1.16b", 0x01010101)
#undef QLORA_PEAK_LOOP

constexpr std::int64_t kInstructions = std::int64_t{kChains} * kRounds;
enum Place { kFmla, kBfmmla, kSdot, kUsmmla };
constexpr PeakLoop kLoops[] = {
    {"fmla 4s", "f32", 8, kInstructions, [] { return true; }, MultiplyAdd},
    {"bfmmla", "bf16", 32, kInstructions, HasNeonMatrices, Bfloat16Matrices},
    {"sdot 4s", "int8", 32, kInstructions, HasNeonDots, ByteDots},
    {"usmmla", "int8", 64, kInstructions, HasNeonMatrices, ByteMatrices},
};
static_assert(std::size(kLoops) == kUsmmla + 1);

}  // namespace

std::span<const PeakLoop> PeakLoops() { return kLoops; }

const PeakLoop& PeakLoopOf(SimdTarget target, DType compute) {
  if (compute == DType::kI8) {
    const Int8Dots dots = ActiveInt8Dots();
    if (dots == Int8Dots::kUsmmla) return kLoops[kUsmmla];
    if (dots == Int8Dots::kSdot) return kLoops[kSdot];
  }
  const bool pairs = compute == DType::kBF16 && MultipliesBfloat16(target);
  return kLoops[pairs ? kBfmmla : kFmla];
}

}  // namespace qlora
#endif

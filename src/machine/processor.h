// Instructions that the compiler offers for x86-64 alone, and their replacements elsewhere.
#ifndef QLORA_MACHINE_PROCESSOR_H_
#define QLORA_MACHINE_PROCESSOR_H_

namespace qlora {

#if defined(__x86_64__)
// Tells the processor that this thread spins.
inline void PauseSpin() { __builtin_ia32_pause(); }

// True when the processor has AVX512_BF16, the dot product of pairs of bfloat16.
inline bool HasBfloat16Dots() { return __builtin_cpu_supports("avx512bf16") != 0; }

// Intel's processors after Cooper Lake leave bfloat16 to AMX: on Emerald Rapids we measured half as
// many multiply-adds a second with vdpbf16ps as with float32; on AMD's Zen 4, twice as many.
inline bool HasSlowBfloat16Dots() {
  return __builtin_cpu_is("intel") != 0 && __builtin_cpu_is("cooperlake") == 0;
}

// vpdpbusd, four products of 8 bits for each sum: of AVX512_VNNI, and of AVX-VNNI.
bool HasZmmVnni();
bool HasYmmVnni();

// Products of tiles of AMX: the processor has them, and Linux gives this process their state, 8 KiB
// a thread, for which it is asked here.
bool HasInt8Tiles();
bool HasBfloat16Tiles();
#else
inline void PauseSpin() {}
inline bool HasBfloat16Dots() { return false; }
inline bool HasSlowBfloat16Dots() { return false; }
inline bool HasZmmVnni() { return false; }
inline bool HasYmmVnni() { return false; }
inline bool HasInt8Tiles() { return false; }
inline bool HasBfloat16Tiles() { return false; }
#endif

}  // namespace qlora

#endif  // QLORA_MACHINE_PROCESSOR_H_

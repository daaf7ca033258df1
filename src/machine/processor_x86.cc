#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "machine/processor.h"

namespace qlora {
namespace {

// A bit of the features that cpuid lists in leaf 7; of these the compilers know only some by name.
enum Register { kEax, kEbx, kEcx, kEdx };
bool HasFeature(unsigned subleaf, Register which, int bit) {
  std::array<unsigned, 4> values = {};
  if (__get_cpuid_count(7, subleaf, &values[kEax], &values[kEbx], &values[kEcx], &values[kEdx]) ==
      0) {
    return false;
  }
  return (values[which] >> bit & 1) != 0;
}

bool HasTiles(int bit) {
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  constexpr int kTileBit = 24;
  return HasFeature(0, kEdx, kTileBit) && HasFeature(0, kEdx, bit) &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool HasZmmVnni() { return __builtin_cpu_supports("avx512f") != 0 && HasFeature(0, kEcx, 11); }
bool HasYmmVnni() { return __builtin_cpu_supports("avx2") != 0 && HasFeature(1, kEax, 4); }
bool HasBfloat16Tiles() { return HasTiles(22); }
bool HasInt8Tiles() { return HasTiles(25); }

}  // namespace qlora
#endif

// The tiles of AMX, of up to 16 rows of 64 bytes. Instructions are written as such: intrinsics of
// GCC 12 do not say that they read memory.
#ifndef QLORA_BACKEND_CPU_X86_TILES_INL_H_
#define QLORA_BACKEND_CPU_X86_TILES_INL_H_

#include "backend/cpu/x86/avx512-inl.h"
#include "machine/tile_config.h"

HWY_PUSH_ATTRIBUTES(QLORA_AVX512)

namespace qlora::cpu {

inline constexpr int kTileRows = 16;
inline constexpr Index kTileBytes = 64;  // of a row

inline void BeginTiles(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
inline void EndTiles() { __asm__ volatile("tilerelease"); }

// Gives this thread tiles, until it is destroyed.
class Tiles {
 public:
  explicit Tiles(const TileConfig& config) { BeginTiles(config); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  ~Tiles() { EndTiles(); }
};

// stride: bytes from one row in memory to the next.
template <int kTile>
HWY_INLINE void LoadTile(const void* from, Index stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
HWY_INLINE void StoreTile(void* to, Index stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(to), "r"(stride), "i"(kTile)
                   : "memory");
}
template <int kTile>
HWY_INLINE void ClearTile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// sums += rows of pairs of bfloat16 times lanes of such pairs; of bytes.
template <int kSums, int kRows, int kLanes>
HWY_INLINE void MultiplyPairs() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "i"(kSums), "i"(kRows), "i"(kLanes));
}
template <int kSums, int kRows, int kLanes>
HWY_INLINE void MultiplyBytes() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kRows), "i"(kLanes));
}

}  // namespace qlora::cpu
HWY_POP_ATTRIBUTES

#endif  // QLORA_BACKEND_CPU_X86_TILES_INL_H_

// The operand of ldtilecfg, which gives a thread the tiles of AMX.
#ifndef QLORA_MACHINE_TILE_CONFIG_H_
#define QLORA_MACHINE_TILE_CONFIG_H_

#include <cstdint>

namespace qlora {

// All eight tiles whole: 16 rows of 64 bytes.
struct TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t first_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace qlora

#endif  // QLORA_MACHINE_TILE_CONFIG_H_

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/store_tile.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>

#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/store_tile.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

void StoreTransposedTile(const float* tile, std::int64_t tile_stride, const float* bias, bool add,
                         const MatrixView& y) {
  constexpr std::size_t kMost = 64;  // columns of y at once
  const FloatTag d;
  HWY_ALIGN float block[kLanes * kMost];
  const auto stride = static_cast<std::size_t>(tile_stride);
  const auto rows = static_cast<std::size_t>(y.rows);
  const auto cols = static_cast<std::size_t>(y.cols);
  for (std::size_t first = 0; first < cols; first += kMost) {
    const std::size_t count = std::min(kMost, cols - first);
    for (std::size_t n = 0; n < rows; n += kLanes) {
      for (std::size_t o = 0; o < count; o += 4) {
        hn::Vec<FloatTag> v[4];
        for (std::size_t j = 0; j < 4; ++j) {
          v[j] = o + j < count ? hn::LoadU(d, tile + (first + o + j) * stride + n) : hn::Zero(d);
        }
        StoreColumns(v, block + o, kMost);
      }
      for (std::size_t j = 0; j < std::min(kLanes, rows - n); ++j) {
        const float* in = block + j * kMost;
        const Row out(y, static_cast<std::int64_t>(n + j));
        ForEachVector(count, [&](auto tag, std::size_t o) HWY_ATTR {
          auto value = hn::LoadU(tag, in + o);
          if (bias != nullptr) value = hn::Add(value, hn::LoadU(tag, bias + first + o));
          if (add) value = hn::Add(value, out.Load(tag, first + o));
          out.Store(tag, value, first + o);
        });
      }
    }
  }
}

void StoreTileRows(const float* tile, std::int64_t tile_stride, bool add, const MatrixView& y) {
  for (std::int64_t n = 0; n < y.rows; ++n) {
    const float* in = tile + n * tile_stride;
    const Row out(y, n);
    ForEachVector(static_cast<std::size_t>(y.cols), [&](auto d, std::size_t i) HWY_ATTR {
      auto value = hn::LoadU(d, in + i);
      if (add) value = hn::Add(value, out.Load(d, i));
      out.Store(d, value, i);
    });
  }
}

}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qlora::cpu {

HWY_EXPORT(StoreTransposedTile);
void StoreTransposed(const float* tile, std::int64_t tile_stride, const float* bias, bool add,
                     const MatrixView& y) {
  HWY_DYNAMIC_DISPATCH(StoreTransposedTile)(tile, tile_stride, bias, add, y);
}

HWY_EXPORT(StoreTileRows);
void StoreTile(const float* tile, std::int64_t tile_stride, bool add, const MatrixView& y) {
  HWY_DYNAMIC_DISPATCH(StoreTileRows)(tile, tile_stride, add, y);
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm/store_tile.cc"
#include <hwy/foreach_target.h>
// Included after foreach_target.
#include <algorithm>

#include "backend/cpu/gemm/store_tile.h"
#include "backend/cpu/lanes-inl.h"
#include "backend/cpu/row_ops.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {

// Up to kMost columns of kLanes rows of y are transposed in a block, four columns at a time, and
// then written row by row:
//   tile  o | n n+1 n+2 ...      block  n   | o o+1 o+2 ...
//       o+1 | n n+1 n+2 ...  ->         n+1 | o o+1 o+2 ...
void StoreTransposedTile(const float* tile, std::int64_t tile_stride, const float* bias, bool add,
                         const MatrixView& y) {
  constexpr std::int64_t kMost = 64;  // columns of y at once
  const FloatTag d;
  HWY_ALIGN float block[kLanes * kMost];
  for (std::int64_t first = 0; first < y.cols; first += kMost) {
    const std::int64_t count = std::min(kMost, y.cols - first);
    for (std::int64_t n = 0; n < y.rows; n += kLanes) {
      for (std::int64_t o = 0; o < count; o += 4) {
        // Four vectors are always transposed together. Columns beyond the last are zeros, which
        // land in the block but are not copied to y.
        hn::Vec<FloatTag> v[4];
        for (std::int64_t j = 0; j < 4; ++j) {
          v[j] =
              o + j < count ? hn::LoadU(d, tile + (first + o + j) * tile_stride + n) : hn::Zero(d);
        }
        StoreColumns(v, block + o, kMost);
      }
      for (std::int64_t j = 0; j < std::min(kLanes, y.rows - n); ++j) {
        const float* in = block + j * kMost;
        const Row out(y, n + j);
        ForEachVector(count, [&](auto tag, std::int64_t o) HWY_ATTR {
          auto value = hn::LoadU(tag, in + o);
          if (bias != nullptr) value = hn::Add(value, hn::LoadU(tag, bias + first + o));
          if (add) value = hn::Add(value, out.Load(tag, first + o));
          out.Store(tag, value, first + o);
        });
      }
    }
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

void StoreTile(const float* tile, std::int64_t tile_stride, bool add, const MatrixView& y) {
  const ConstMatrixView x = {tile, DType::kF32, y.rows, y.cols, tile_stride};
  CopyRows({.x = x, .y = y, .add = add}, {0, y.rows});
}

}  // namespace qlora::cpu
#endif  // HWY_ONCE

// Products of packed operands in float32 lanes; contract: Kernels::multiply in kernels.h. Included
// once per target by kernels.cc.
#if defined(QLORA_BACKEND_CPU_GEMM_F32_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QLORA_BACKEND_CPU_GEMM_F32_TILE_INL_H_
#undef QLORA_BACKEND_CPU_GEMM_F32_TILE_INL_H_
#else
#define QLORA_BACKEND_CPU_GEMM_F32_TILE_INL_H_
#endif

#include <algorithm>

#include "backend/cpu/gemm/kernels.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qlora::cpu::HWY_NAMESPACE {
namespace {

// A tile keeps kRows * kVecs sums in registers: 24 of the 32 of AVX-512, 12 of the 16 of AVX2. The
// others hold kVecs panel vectors and the broadcast value. At least 10 independent sums cover two
// multiply-adds per cycle of latency 4 to 5.
//
//   AVX2, 6 rows x 2 vectors              panel, value k    | lane 0 | lane 1 |
//   of 16 registers: 12 sums,        a(r, k), broadcast     +--------+--------+
//   2 of the panel, 1 broadcast      r = 0 ... 5            | sums(r, 2)      |
#if HWY_TARGET == HWY_AVX2
constexpr std::int64_t kVectors = 2;  // of a panel
constexpr std::int64_t kSums = 12;
#else
constexpr std::int64_t kVectors = 4;
constexpr std::int64_t kSums = HWY_TARGET == HWY_SCALAR ? 12 : 24;
#endif
constexpr std::int64_t kPanel = kVectors * kLanes;

// Fetches a line into the second-level cache at every call, each `stride` bytes after the one
// before; after `run` of them comes one `jump` bytes farther.
struct Fetcher {
  HWY_INLINE void operator()() {
    constexpr int kRead = 0;
    constexpr int kLocality = 2;
    __builtin_prefetch(line, kRead, kLocality);
    line += stride;
    if (--left > 0) return;
    left = run;
    line += jump;
  }

  const char* line;
  std::int64_t stride;
  std::int64_t run;
  std::int64_t jump;
  std::int64_t left = run;
};
constexpr std::int64_t kFetchDepth = 2;  // values of k per line

// The prefetches of a product's tiles: each takes its share of the cache lines of p.fetch (a line
// several times where there are few), and afterwards the rows of A that come next.
class FetchPlan {
 public:
  FetchPlan(const Product& p, std::int64_t tiles)
      : p_(p),
        lines_((p.fetch_lines + tiles - 1) / tiles),
        run_(lines_ == 0 ? 0 : std::max<std::int64_t>(1, p.k / (kFetchDepth * lines_))) {}

  Fetcher Of(std::int64_t tile, const float* next_rows) const {
    const std::int64_t first = lines_ * tile;
    if (first < p_.fetch_lines) {
      return {.line = static_cast<const char*>(p_.fetch) + first * p_.fetch_stride,
              .stride = 0,
              .run = run_,
              .jump = p_.fetch_stride};
    }
    constexpr std::int64_t kFloatBytes = sizeof(float);
    constexpr std::int64_t kLineValues = kCacheLine / kFloatBytes;
    constexpr std::int64_t kRun = kLineValues / kFetchDepth;  // more rows than most tiles have
    const std::int64_t row = p_.a_stride * kFloatBytes;
    return {.line = reinterpret_cast<const char*>(next_rows),
            .stride = row,
            .run = kRun,
            .jump = kCacheLine - kRun * row};
  }

 private:
  const Product& p_;
  std::int64_t lines_;  // of a tile
  std::int64_t run_;    // times that each is fetched
};

// A tile of c (kRows, kVecs * kLanes), or zeros if it is not added to.
template <std::int64_t kRows, std::int64_t kVecs>
HWY_INLINE void LoadSums(const Product& p, const float* c, hn::Vec<FloatTag> (&sum)[kRows][kVecs]) {
  const FloatTag d;
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kRows; ++r) {
    const float* row = c + r * p.c_stride;
#pragma GCC unroll 16
    for (std::int64_t v = 0; v < kVecs; ++v) {
      sum[r][v] = p.add ? hn::LoadU(d, row + v * kLanes) : hn::Zero(d);
    }
  }
}
template <std::int64_t kRows, std::int64_t kVecs>
HWY_INLINE void StoreSums(const Product& p, const hn::Vec<FloatTag> (&sum)[kRows][kVecs],
                          float* c) {
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kRows; ++r) {
    float* row = c + r * p.c_stride;
#pragma GCC unroll 16
    for (std::int64_t v = 0; v < kVecs; ++v) hn::StoreU(sum[r][v], FloatTag(), row + v * kLanes);
  }
}

// sum(r, lane) += a(r) * panel(lane), for one value of k: a(r) are `stride` apart.
template <std::int64_t kRows, std::int64_t kVecs>
HWY_INLINE void AddProducts(const float* HWY_RESTRICT a, std::int64_t stride,
                            const float* HWY_RESTRICT panel,
                            hn::Vec<FloatTag> (&sum)[kRows][kVecs]) {
  const FloatTag d;
  hn::Vec<FloatTag> lane[kVecs];
#pragma GCC unroll 16
  for (std::int64_t v = 0; v < kVecs; ++v) lane[v] = hn::LoadU(d, panel + v * kLanes);
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kRows; ++r) {
    const auto value = hn::Set(d, a[r * stride]);
#pragma GCC unroll 16
    for (std::int64_t v = 0; v < kVecs; ++v) sum[r][v] = hn::MulAdd(value, lane[v], sum[r][v]);
  }
}

template <std::int64_t kRows, std::int64_t kVecs>
void Tile(const Product& p, const float* HWY_RESTRICT a, float* HWY_RESTRICT c, Fetcher fetch) {
  const std::int64_t a_stride = p.a_stride;
  const std::int64_t width = p.width;
  const auto* HWY_RESTRICT panel = static_cast<const float*>(p.panel);
  hn::Vec<FloatTag> sum[kRows][kVecs];
  LoadSums(p, c, sum);
  std::int64_t k = 0;
  static_assert(kFetchDepth == 2);
  for (; k + 2 <= p.k; k += 2) {
    fetch();
    AddProducts(a + k, a_stride, panel + k * width, sum);
    AddProducts(a + k + 1, a_stride, panel + (k + 1) * width, sum);
  }
  if (k < p.k) AddProducts(a + k, a_stride, panel + k * width, sum);
  StoreSums(p, sum, c);
}

template <std::int64_t kVecs>
inline constexpr std::int64_t kMostRows = std::min<std::int64_t>(kSums / kVecs, 12);

// Tiles of nearly the same height: a low one has too few sums.
template <std::int64_t kVecs>
void MultiplyVectors(const Product& p) {
  if (p.width != kVecs * kLanes) {
    if constexpr (kVecs > 1) MultiplyVectors<kVecs - 1>(p);
    return;
  }
  static constexpr auto kTiles =
      KernelsFor<kMostRows<kVecs>>([]<int kRows>() { return Tile<kRows, kVecs>; });
  const std::int64_t tiles = (p.rows + kMostRows<kVecs> - 1) / kMostRows<kVecs>;
  const std::int64_t low = p.rows / tiles;
  const std::int64_t higher = p.rows % tiles;  // tiles with a row more
  const FetchPlan fetches(p, tiles);
  const auto* a = static_cast<const float*>(p.a);
  float* c = p.c;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t height = low + (t < higher ? 1 : 0);
    const float* next = a + height * p.a_stride;
    kTiles[height - 1](p, a, c, fetches.Of(t, next));
    a = next;
    c += height * p.c_stride;
  }
}

void Multiply(const Product& p) { MultiplyVectors<kVectors>(p); }

}  // namespace
}  // namespace qlora::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // QLORA_BACKEND_CPU_GEMM_F32_TILE_INL_H_

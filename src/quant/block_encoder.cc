#include "quant/block_encoder.h"

#include <algorithm>
#include <bit>

#include "base/matrix.h"
#include "quant/encode.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace qlora {

// The absmax, or the scale that the search prefers to it.
template <typename T>
bool BlockEncoder::FindScale(const T* x, std::int64_t n, std::int64_t first, float* scale) {
  const std::uint32_t bits = MaxMagnitudeBits(x, n);
  // NaN and infinities have bits from kInfBits on, so the search for the largest magnitude finds
  // them on its way, without a separate pass.
  if (bits >= kInfBits) return false;
  *scale = std::bit_cast<float>(bits);
  if (search_) *scale = search_->Best(x, n, first, *scale);
  return true;
}

// Whole blocks by the kernels, which find absmax on their way.
template <typename T>
bool BlockEncoder::EncodeWhole(const T* x, std::int64_t blocks, std::int64_t first,
                               std::uint8_t* packed, float* scales) {
  for (std::int64_t b = 0; search_ && b < blocks; ++b) {
    const std::int64_t at = b * block_size_;
    if (!FindScale(x + at, block_size_, first + at, scales + b)) return false;
  }
  return EncodeBlocks({.x = x,
                       .dtype = kDTypeOf<T>,
                       .blocks = blocks,
                       .block_size = block_size_,
                       .table = table_,
                       .packed = packed + first / 2,
                       .scales = scales,
                       .has_scales = search_.has_value()}) == blocks;
}

// |  whole blocks  | short |     Kernels take whole blocks that begin with a byte and are multiples
// of |   by kernels   |scalar |     their step; the scalar definition encodes the rest.
template <typename T>
bool BlockEncoder::Encode(const T* x, std::int64_t n, std::int64_t first, std::uint8_t* packed,
                          float* scales) {
  std::int64_t begin = 0;
  if (block_size_ % kKernelStep == 0 && first % 2 == 0) {
    const std::int64_t whole = n / block_size_;
    if (!EncodeWhole(x, whole, first, packed, scales)) return false;
    begin = whole * block_size_;
    scales += whole;
  }
  for (; begin < n; begin += block_size_, ++scales) {
    const std::int64_t count = std::min(block_size_, n - begin);
    if (!FindScale(x + begin, count, first + begin, scales)) return false;
    const Normalizer normalizer = NormalizerOf(*table_, count == block_size_, scales);
    EncodeSpan(x + begin, count, normalizer, *table_, packed, first + begin);
  }
  return true;
}

#define QLORA_INSTANTIATE(T) \
  template bool BlockEncoder::Encode(const T*, std::int64_t, std::int64_t, std::uint8_t*, float*);
QLORA_INSTANTIATE(float)
QLORA_INSTANTIATE(BFloat16)
QLORA_INSTANTIATE(Float16)
#undef QLORA_INSTANTIATE

// Row by row, as far as each row goes.
void GatherFloats(const ConstMatrixView& w, std::int64_t begin, std::int64_t count, float* out) {
  const auto bytes = static_cast<std::int64_t>(BytesOf(w.dtype, 1));
  for (const float* end = out + count; out < end;) {
    const std::int64_t row = begin / w.cols;
    const std::int64_t col = begin % w.cols;
    const std::int64_t piece = std::min<std::int64_t>(end - out, w.cols - col);
    const char* data = static_cast<const char*>(w.data) + (row * w.stride + col) * bytes;
    ConvertToWide(data, w.dtype, 0, MakeView(out, 1, piece));
    out += piece;
    begin += piece;
  }
}

}  // namespace qlora

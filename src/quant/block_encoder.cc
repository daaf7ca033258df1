#include "quant/block_encoder.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/matrix.h"
#include "quant/encode.h"
#include "quant/kernels.h"
#include "quant/layout.h"

namespace qlora {

template <typename T>
bool BlockEncoder::FindScale(const T* x, std::int64_t n, std::int64_t first, float* scale) {
  const std::uint32_t bits = MaxMagnitudeBits(x, n);
  if (bits >= kInfBits) return false;
  *scale = std::bit_cast<float>(bits);
  if (search_) *scale = search_->Best(x, n, first, *scale);
  return true;
}

// Whole blocks by the kernels, which find absmax on their way.
template <typename T>
std::int64_t BlockEncoder::EncodeWhole(const T* x, std::int64_t blocks, std::int64_t first,
                                       std::uint8_t* packed, float* scales) {
  for (std::int64_t b = 0; search_ && b < blocks; ++b) {
    const std::int64_t at = b * block_size_;
    if (!FindScale(x + at, block_size_, first + at, scales + b)) return b;
  }
  return EncodeBlocks({.x = x,
                       .dtype = kDTypeOf<T>,
                       .blocks = blocks,
                       .block_size = block_size_,
                       .table = table_,
                       .packed = packed + first / 2,
                       .scales = scales,
                       .has_scales = search_.has_value()});
}

template <typename T>
std::int64_t BlockEncoder::Encode(const T* x, std::int64_t n, std::int64_t first,
                                  std::uint8_t* packed, float* scales) {
  const std::int64_t blocks = BlockCount(n, block_size_);
  std::int64_t b = 0;
  if (block_size_ % kKernelStep == 0 && first % 2 == 0) {
    const std::int64_t whole = n / block_size_;
    b = EncodeWhole(x, whole, first, packed, scales);
    if (b < whole) return b;
  }
  for (; b < blocks; ++b) {
    const std::int64_t at = b * block_size_;
    const std::int64_t count = std::min(block_size_, n - at);
    if (!FindScale(x + at, count, first + at, scales + b)) return b;
    const Normalizer normalizer = NormalizerOf(*table_, count == block_size_, scales + b);
    EncodeSpan(x + at, count, normalizer, *table_, packed, first + at);
  }
  return blocks;
}

#define QLORA_INSTANTIATE(T)                                                                      \
  template std::int64_t BlockEncoder::Encode(const T*, std::int64_t, std::int64_t, std::uint8_t*, \
                                             float*);
QLORA_INSTANTIATE(float)
QLORA_INSTANTIATE(BFloat16)
QLORA_INSTANTIATE(Float16)
#undef QLORA_INSTANTIATE

void FirstBlock::Report(std::int64_t block) {
  std::int64_t seen = first_.load();
  while (block < seen && !first_.compare_exchange_weak(seen, block)) {
  }
}

std::optional<std::int64_t> FirstBlock::Get() const {
  const std::int64_t first = first_.load();
  if (first == none_) return std::nullopt;
  return first;
}

std::string QuantizeSubject(const std::string& name) {
  return name.empty() ? "quantize" : fmt::format("quantize: tensor '{}'", name);
}

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

void CheckDType(const ConstMatrixView& w, const std::string& name) {
  if (w.dtype == DType::kF32 || w.dtype == DType::kBF16 || w.dtype == DType::kF16) return;
  ThrowInvalidInput("{}: expected F32, BF16 or F16 values, found {}", QuantizeSubject(name),
                    NameOf(w.dtype));
}

void CheckFinite(Context& context, const ConstMatrixView& w, const std::string& name) {
  const std::int64_t i = FirstNonFinite(context, w);
  if (i < 0) return;
  float value;
  GatherFloats(w, i, 1, &value);
  ThrowInvalidInput(
      "{}: value {} at index {} (row {}, column {}); expected finite values. Check the file for a "
      "damaged download or a diverged training run",
      QuantizeSubject(name), value, i, i / w.cols, i % w.cols);
}

void CheckStorage(std::span<const std::byte> storage, std::size_t bytes, const std::string& name) {
  if (storage.size() >= bytes && reinterpret_cast<std::uintptr_t>(storage.data()) % 64 == 0) return;
  ThrowInvalidInput("{}: expected {} bytes of storage aligned to 64, found {}",
                    QuantizeSubject(name), bytes, storage.size());
}

}  // namespace qlora

// The pieces of the format on plain arrays.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "qlora/nf4.h"
#include "quant/layout.h"

namespace qlora {
namespace {

void CheckSizes(const char* what, std::int64_t values, std::int64_t block_size, std::size_t packed,
                std::size_t absmax) {
  if (block_size < 1) ThrowInvalidInput("{}: expected block_size >= 1, found {}", what, block_size);
  const auto expected_packed = static_cast<std::size_t>(PackedBytes(values));
  const auto expected_absmax = static_cast<std::size_t>(BlockCount(values, block_size));
  if (packed != expected_packed || absmax != expected_absmax) {
    ThrowInvalidInput(
        "{}: {} values in blocks of {} need {} packed bytes and {} scales, found {} and {}", what,
        values, block_size, expected_packed, expected_absmax, packed, absmax);
  }
}

}  // namespace

template <typename T>
void QuantizeNf4(std::span<const T> x, std::int64_t block_size, std::span<std::uint8_t> packed,
                 std::span<float> absmax) {
  CheckSizes("quantize_nf4", std::ssize(x), block_size, packed.size(), absmax.size());
  Context context(1);
  const QuantizedMatrix q = Quantize(context, MakeView(x.data(), 1, std::ssize(x)),
                                     {.block_size = block_size, .scale_type = ScaleType::kF32});
  std::copy_n(q.view().packed, packed.size(), packed.begin());
  LoadScales(q.view(), 0, std::ssize(absmax), absmax.data());
}

template <typename T>
void DequantizeNf4(std::span<const std::uint8_t> packed, std::span<const float> absmax,
                   std::int64_t block_size, std::span<T> out) {
  CheckSizes("dequantize_nf4", std::ssize(out), block_size, packed.size(), absmax.size());
  const QuantizedView q = {.packed = packed.data(),
                           .rows = 1,
                           .cols = std::ssize(out),
                           .block_size = block_size,
                           .code = kNf4Codebook.data(),
                           .scales = absmax.data()};
  DequantizeRows(q, 0, MakeView(out.data(), 1, std::ssize(out)));
}

#define QLORA_INSTANTIATE(T)                                                                       \
  template void QuantizeNf4(std::span<const T>, std::int64_t, std::span<std::uint8_t>,             \
                            std::span<float>);                                                     \
  template void DequantizeNf4(std::span<const std::uint8_t>, std::span<const float>, std::int64_t, \
                              std::span<T>);
QLORA_INSTANTIATE(float)
QLORA_INSTANTIATE(BFloat16)
QLORA_INSTANTIATE(Float16)
#undef QLORA_INSTANTIATE

void QuantizeNearest(std::span<const float> x, std::span<const float> codebook,
                     std::span<std::uint8_t> codes) {
  if (codebook.size() < 2 || codebook.size() > 256 || x.size() != codes.size() ||
      !std::is_sorted(codebook.begin(), codebook.end())) {
    ThrowInvalidInput(
        "quantize_nearest: expected an ascending codebook of 2 to 256 values and as many codes as "
        "values, found {} entries, {} values and {} codes",
        codebook.size(), x.size(), codes.size());
  }
  std::vector<float> midpoints(codebook.size() - 1);
  for (std::size_t k = 0; k < midpoints.size(); ++k) {
    midpoints[k] = (codebook[k] + codebook[k + 1]) / 2;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) ThrowInvalidInput("quantize_nearest: value {} is NaN", i);
    const auto above = std::lower_bound(midpoints.begin(), midpoints.end(), x[i]);
    codes[i] = static_cast<std::uint8_t>(above - midpoints.begin());
  }
}

std::size_t BytesOf(const QuantizedView& q) {
  const auto blocks = static_cast<std::size_t>(q.blocks());
  std::size_t bytes = static_cast<std::size_t>(PackedBytes(q.size()));
  bytes += blocks * ScaleBytes(q.scale_type);
  if (IsDouble(q.scale_type)) {
    bytes += static_cast<std::size_t>(BlockCount(q.blocks(), q.nested_block_size)) * 4;
    bytes += sizeof(q.offset);
  }
  if (q.shifts != nullptr) bytes += blocks * 4;
  return bytes;
}

std::size_t QuantizedMatrix::bytes() const { return BytesOf(view_); }

double QuantizedMatrix::bits_per_weight() const {
  return 8.0 * static_cast<double>(bytes()) / static_cast<double>(view_.size());
}

double QuantizedMatrix::compression_ratio() const { return 32.0 / bits_per_weight(); }

}  // namespace qlora

// The pieces of the format on plain arrays.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "qlora/nf4.h"

namespace qlora {
namespace {

// packed and absmax: the sizes that were found.
void CheckSizes(const char* what, std::int64_t values, std::int64_t block_size, std::int64_t packed,
                std::int64_t absmax) {
  if (block_size < 1) ThrowInvalidInput("{}: expected block_size >= 1, found {}", what, block_size);
  const std::int64_t expected_packed = PackedBytes(values);
  const std::int64_t expected_absmax = BlockCount(values, block_size);
  if (packed != expected_packed || absmax != expected_absmax) {
    ThrowInvalidInput(
        "{}: {} values in blocks of {} need {} packed bytes and {} scales, found {} and {}", what,
        values, block_size, expected_packed, expected_absmax, packed, absmax);
  }
}

}  // namespace

// One row, in the calling thread.
template <typename T>
void QuantizeNf4(std::span<const T> x, std::int64_t block_size, std::span<std::uint8_t> packed,
                 std::span<float> absmax) {
  CheckSizes("quantize_nf4", std::ssize(x), block_size, std::ssize(packed), std::ssize(absmax));
  // One thread: callers pass single rows, for which starting others takes longer than the work.
  Context context(1);
  const QuantizedMatrix q = Quantize(context, MakeView(x.data(), 1, std::ssize(x)),
                                     {.block_size = block_size, .scale_type = ScaleType::kF32});
  std::copy_n(q.view().packed, packed.size(), packed.begin());
  LoadScales(q.view(), 0, std::ssize(absmax), absmax.data());
}

template <typename T>
void DequantizeNf4(std::span<const std::uint8_t> packed, std::span<const float> absmax,
                   std::int64_t block_size, std::span<T> out) {
  CheckSizes("dequantize_nf4", std::ssize(out), block_size, std::ssize(packed), std::ssize(absmax));
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

// The code of x is the number of midpoints strictly below it, so a tie takes the lower index.
void QuantizeNearest(std::span<const float> x, std::span<const float> codebook,
                     std::span<std::uint8_t> codes) {
  // A code is a byte, hence 256 entries; the search below needs ascending ones.
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

}  // namespace qlora

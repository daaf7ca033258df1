// 4-bit NormalFloat: codebooks, storage, quantization and dequantization.
//
// NF4 (Dettmers et al., "QLoRA", arXiv:2305.14314, appendix E) as bitsandbytes stores it: the
// row-major values are cut into blocks of block_size consecutive values; byte i of the packed data
// holds value 2i in bits 7..4 and value 2i+1 in bits 3..0; a value is code[nibble] * scale[block].
// An odd last nibble is 7 (NF4) or 0 (FP4).
#ifndef QLORA_NF4_H_
#define QLORA_NF4_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "qlora/context.h"
#include "qlora/tensor.h"

namespace qlora {

enum class QuantType : std::uint8_t { kNf4, kFp4 };

// The storage of the scale of each block, its largest absolute value.
enum class ScaleType : std::uint8_t {
  kF32,
  kDoubleBnb,  // double quantization: an 8-bit code, as NestedScales says
};

// The 16 NF4 values, float32, index = nibble. The only table of them in this project.
inline constexpr std::array<float, 16> kNf4Codebook = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The 16 FP4 values of bitsandbytes in nibble order: bit 3 is the sign, the rest picks 0, 1/192,
// 2/3, 1, 1/3, 1/2, 1/6 or 1/4. Not sorted; zero occurs twice.
inline constexpr std::array<float, 16> kFp4Codebook = {
    0.0f,  0x1.555556p-8f,  0x1.555556p-1f,  1.0f,  0x1.555556p-2f,  0.5f,  0x1.555556p-3f,  0.25f,
    -0.0f, -0x1.555556p-8f, -0x1.555556p-1f, -1.0f, -0x1.555556p-2f, -0.5f, -0x1.555556p-3f, -0.25f,
};

// Half the widest gap between neighbouring NF4 values: the largest error of a value whose block has
// scale 1.
inline constexpr float kNf4MaxError = (1.0f - 0.6961928009986877f) / 2;

// The second level of double quantization. The scale of block b is
//   map[code[b]] * absmax[b / block_size] + offset.
struct NestedScales {
  const float* map = nullptr;     // 256 values, index = code of a scale
  const float* absmax = nullptr;  // one per block_size scales
  std::int64_t block_size = 256;  // scales per nested block
  float offset = 0;               // the mean that was subtracted from the scales
};

// A borrowed 4-bit matrix (rows, cols) in the layout of bitsandbytes, which kernels read. Blocks
// run along the row-major order and may cross row ends; the last block may be short. Layouts of
// other libraries: qlora/nf4_compat.h.
struct QuantizedView {
  const std::uint8_t* packed = nullptr;  // (rows * cols + 1) / 2 bytes
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block_size = 64;
  const float* code = nullptr;  // 16 values, index = nibble
  ScaleType scale_type = ScaleType::kF32;
  const void* scales = nullptr;  // one per block: float32, or uint8 codes (kDoubleBnb)
  NestedScales nested = {};      // kDoubleBnb only

  std::int64_t size() const { return rows * cols; }
  std::int64_t blocks() const { return (rows * cols + block_size - 1) / block_size; }
};

// Writes the float32 scales of blocks [first, first + count) to out (count).
void LoadScales(const QuantizedView& q, std::int64_t first, std::int64_t count, float* out);

// Values find their codes as in bitsandbytes' CPU code: x = w * (1 / absmax), or w / absmax in a
// short last block; the nearest value by float32 midpoints, the lower one on a tie. Blocks of zeros
// decode to exact zeros under every ScaleType.
struct QuantizeOptions {
  QuantType type = QuantType::kNf4;
  // Values per block, at least 1. bitsandbytes reads 32, 64, 128 ... 4096.
  std::int64_t block_size = 64;
  ScaleType scale_type = ScaleType::kDoubleBnb;
  std::int64_t scaler_block_size = 256;  // scales per nested block under double quantization
  // Picks the scale of each block that minimises the squared error instead of the largest absolute
  // value. Same format, about 7 % less error.
  bool scale_search = false;
  // With scale_search: weight of the squared error of each column (cols values, finite, >= 0), such
  // as the mean square of the activation that meets the column. Empty: all equal.
  std::span<const float> importance = {};
  std::string name = {};  // of the tensor, for error messages
};

// Bytes that QuantizeInto needs for a (rows, cols) matrix, alignment included.
std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options);

// Quantizes w (rows, cols; F32, BF16 or F16) into `storage` (StorageBytes, aligned to 64 bytes) and
// returns a view of it. The result does not depend on the number of threads.
// Errors (InvalidInput): NaN or Inf in w (with its index), bad options.
QuantizedView QuantizeInto(Context& context, ConstMatrixView w, const QuantizeOptions& options,
                           std::span<std::byte> storage);

// An owned 4-bit matrix. Copies share the same immutable storage.
class QuantizedMatrix {
 public:
  QuantizedMatrix() = default;
  QuantizedMatrix(QuantizedView view, std::shared_ptr<const void> storage)
      : view_(view), storage_(std::move(storage)) {}

  const QuantizedView& view() const { return view_; }
  const std::shared_ptr<const void>& storage() const { return storage_; }
  std::int64_t rows() const { return view_.rows; }
  std::int64_t cols() const { return view_.cols; }
  // Bytes of codes, scales, nested scales and offset; the codebook not counted.
  std::size_t bytes() const;
  double bits_per_weight() const;
  // Bytes as float32 / bytes().
  double compression_ratio() const;

 private:
  QuantizedView view_;
  std::shared_ptr<const void> storage_;
};

std::size_t BytesOf(const QuantizedView& q);

// As QuantizeInto, into storage that the result owns.
QuantizedMatrix Quantize(Context& context, ConstMatrixView w, const QuantizeOptions& options = {});

// out (rows, cols; F32, BF16 or F16) = code * scale, one float32 product rounded to the dtype of
// out: bitsandbytes' decode, bit for bit. Errors (InvalidInput): another shape or dtype.
void Dequantize(Context& context, const QuantizedView& q, MatrixView out);

// Rows [first_row, first_row + out.rows) in the calling thread; may be called inside a task.
void DequantizeRows(const QuantizedView& q, std::int64_t first_row, MatrixView out);

// ---- The pieces, on plain arrays, in the calling thread.

constexpr std::int64_t PackedBytes(std::int64_t values) { return (values + 1) / 2; }
constexpr std::int64_t BlockCount(std::int64_t values, std::int64_t block_size) {
  return (values + block_size - 1) / block_size;
}

// x (n) -> packed (PackedBytes(n)), absmax (BlockCount(n, block_size)). T: float, BFloat16,
// Float16.
template <typename T>
void QuantizeNf4(std::span<const T> x, std::int64_t block_size, std::span<std::uint8_t> packed,
                 std::span<float> absmax);

// The inverse: out (n) = code * absmax, rounded to T.
template <typename T>
void DequantizeNf4(std::span<const std::uint8_t> packed, std::span<const float> absmax,
                   std::int64_t block_size, std::span<T> out);

// codes[i] = index of the entry of the ascending `codebook` (2..256 values) nearest to x[i]:
// decided by float32 midpoints, the lower index on a tie.
void QuantizeNearest(std::span<const float> x, std::span<const float> codebook,
                     std::span<std::uint8_t> codes);

// Double quantization of scales (n): bitsandbytes codes v = scale - mean, divided by the largest
// |v| of each nested block, by the nearest entry of its dynamic map.
struct DoubleQuantizedScales {
  std::vector<std::uint8_t> codes;   // (n)
  std::vector<float> nested_scales;  // (ceil(n / scaler_block_size)) absmax of the nested blocks
  float offset = 0;                  // the mean of the scales, summed in double
};
DoubleQuantizedScales DoubleQuantizeScales(std::span<const float> scales,
                                           std::int64_t scaler_block_size = 256);

// The inverse: out (n) = map[code] * nested scale + offset.
// Errors (InvalidInput): sizes that do not agree.
void DequantizeScales(std::span<const std::uint8_t> codes, std::span<const float> nested_scales,
                      float offset, std::int64_t scaler_block_size, std::span<float> out);

// ---- Cost.

// Bits of one weight in whole blocks: 4 and its share of the scales. 4.5 with float32 scales of
// blocks of 64, 4.126953125 double-quantized. Offsets of tensors not counted.
double BitsPerWeight(const QuantizeOptions& options);

}  // namespace qlora

#endif  // QLORA_NF4_H_

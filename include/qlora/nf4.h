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

// How the scale of each block (its largest absolute value) is stored.
enum class ScaleType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kDoubleBnb,      // u8 code into a 256-entry map, times an f32 per 256 scales, plus a mean
  kDoubleTorchao,  // int8 divided by an f32 factor per scaler block, plus a mean
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

// How a value finds its code. They differ at ties and for blocks of zeros only.
enum class EncodeRule : std::uint8_t {
  // bitsandbytes' CPU path, and the recommended one: x = w * (1 / absmax), or w / absmax in a short
  // last block; the nearest value by float32 midpoints, the lower one on a tie. Zero blocks decode
  // to exact zeros under every ScaleType.
  kBnbCpu,
  // bitsandbytes' CUDA kernels: four of the midpoints differ by one unit in the last place, FP4
  // ties go toward zero, codes of doubly quantized scales go to the even neighbour, and a block of
  // zeros has code 0 (which decodes to minus its scale). Equal to CUDA's output but for values
  // within one rounding of a midpoint, because the kernels use an approximate reciprocal.
  kBnbCuda,
  // torchao's NF4Tensor: values rounded to four decimals, x = w / absmax, least |x - value|; all
  // arithmetic rounded to the dtype of the weight. A block of zeros has code 0. NF4 only.
  kTorchao,
};

// A borrowed 4-bit matrix (rows, cols): what kernels read. Blocks run along the row-major order
// and may cross row ends; the last block may be short.
struct QuantizedView {
  const std::uint8_t* packed = nullptr;  // (rows * cols + 1) / 2 bytes
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block_size = 64;
  const float* code = nullptr;  // 16 values, index = nibble
  ScaleType scale_type = ScaleType::kF32;
  const void* scales = nullptr;  // one per block: f32, f16, bf16, u8 (bnb) or i8 (torchao)
  // Double quantization only; null and zero otherwise.
  const float* nested_code = nullptr;    // 256 values (bnb)
  const float* nested_scales = nullptr;  // one per nested_block_size scales
  std::int64_t nested_block_size = 256;
  float offset = 0;  // the mean that was subtracted from the scales
  // kDoubleTorchao: the type to which each step of the arithmetic on scales is rounded.
  DType scale_arithmetic = DType::kF32;
  // Every row starts a block, so that a row has ceil(cols / block_size) blocks, the last one short.
  // Only set when cols is no multiple of block_size; packed nibbles run on without gaps.
  bool row_blocks = false;
  const float* shifts = nullptr;  // zero points: one per block, added to code * scale; or null

  std::int64_t size() const { return rows * cols; }
  std::int64_t blocks_per_row() const { return (cols + block_size - 1) / block_size; }
  std::int64_t blocks() const {
    return row_blocks ? rows * blocks_per_row() : (rows * cols + block_size - 1) / block_size;
  }
  // The layout of bitsandbytes, which is all that most kernels know: no row blocks, no zero points.
  bool plain() const { return !row_blocks && shifts == nullptr; }
};

// Writes the float32 scales of blocks [first, first + count) to out (count).
void LoadScales(const QuantizedView& q, std::int64_t first, std::int64_t count, float* out);

struct QuantizeOptions {
  QuantType type = QuantType::kNf4;
  // Values per block, at least 1. bitsandbytes reads 32, 64, 128 ... 4096.
  std::int64_t block_size = 64;
  ScaleType scale_type = ScaleType::kDoubleBnb;
  std::int64_t scaler_block_size = 256;  // scales per nested block under double quantization
  EncodeRule rule = EncodeRule::kBnbCpu;
  // Picks the scale of each block that minimises the squared error instead of the largest absolute
  // value. Same format, about 7 % less error. kBnbCpu and kBnbCuda only.
  bool scale_search = false;
  // With scale_search: weight of the squared error of each column (cols values, finite, >= 0), such
  // as the mean square of the activation that meets the column. Empty: all equal.
  std::span<const float> importance = {};
  // Every row starts a block. With block_size >= cols: one scale per row.
  bool row_blocks = false;
  // Shifts each block by the middle of its range before coding and back after decoding; costs one
  // float32 per block. For data that is not centred on zero.
  bool zero_point = false;
  std::string name = {};  // of the tensor, for error messages
};

// Bytes that QuantizeInto needs for a (rows, cols) matrix, alignment included.
std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options);

// Quantizes w (rows, cols; F32, BF16 or F16) into `storage` (StorageBytes, aligned to 64 bytes) and
// returns a view of it. The result does not depend on the number of threads.
// Errors (InvalidInput): NaN or Inf in w (with its index), a scale beyond float16, bad options.
QuantizedView QuantizeInto(Context& context, ConstMatrixView w, const QuantizeOptions& options,
                           std::span<std::byte> storage);

// An owned 4-bit matrix. Copies share the same immutable storage.
class QuantizedMatrix {
 public:
  QuantizedMatrix() = default;
  QuantizedMatrix(QuantizedView view, std::shared_ptr<const void> storage)
      : view_(view), storage_(std::move(storage)) {}

  const QuantizedView& view() const { return view_; }
  std::int64_t rows() const { return view_.rows; }
  std::int64_t cols() const { return view_.cols; }
  // Bytes of codes, scales, nested scales, offset and zero points; the codebook not counted.
  std::size_t bytes() const;
  double bits_per_weight() const;
  // Bytes as float32 / bytes().
  double compression_ratio() const;

 private:
  QuantizedView view_;
  std::shared_ptr<const void> storage_;
};

std::size_t BytesOf(const QuantizedView& q);

// As QuantizeInto, into storage of its own.
QuantizedMatrix Quantize(Context& context, ConstMatrixView w, const QuantizeOptions& options = {});

// out (rows, cols; F32, BF16 or F16) = code * scale, one float32 product (and one float32 sum with
// zero points) rounded to the dtype of out: bitsandbytes' decode, bit for bit.
// Errors (InvalidInput): another shape or dtype.
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

// Double quantization of scales (n), the second level of the formats.
struct DoubleQuantizedScales {
  std::vector<std::uint8_t> codes;   // (n) u8 map index (kDoubleBnb) or int8 bits (kDoubleTorchao)
  std::vector<float> nested_scales;  // (ceil(n / scaler_block_size)) absmax, or torchao's factor
  float offset = 0;                  // the mean of the scales, summed in double
};
DoubleQuantizedScales DoubleQuantizeScales(std::span<const float> scales, ScaleType scheme,
                                           std::int64_t scaler_block_size = 256,
                                           EncodeRule rule = EncodeRule::kBnbCpu);

// The inverse: out (n) = map[code] * nested scale + offset, or code / factor + offset.
// Errors (InvalidInput): sizes that do not agree.
void DequantizeScales(std::span<const std::uint8_t> codes, std::span<const float> nested_scales,
                      float offset, ScaleType scheme, std::int64_t scaler_block_size,
                      std::span<float> out);

// ---- What it costs.

// Bits of one weight in whole blocks: 4 and its share of the scales and zero points. 4.5 with
// float32 scales of blocks of 64, 4.126953125 double-quantized. Offsets of tensors not counted.
double BitsPerWeight(const QuantizeOptions& options);

// Memory of a model whose linears of the blocks are quantized; embeddings and head are in 16 bits,
// norms in 32.
struct ModelMemory {
  const char* name;
  std::int64_t parameters = 0;
  std::int64_t linear_parameters = 0;  // those that are quantized
  double fp16_bytes = 0;               // all parameters in 16 bits
  double fp32_bytes = 0;
  double linear_bytes = 0;  // the quantized ones
  double total_bytes = 0;   // all

  double ratio() const { return fp16_bytes / total_bytes; }
};

// LLaMA 7B, 13B, 33B and 65B, and Llama 2 70B, in the form of `options`.
std::vector<ModelMemory> MemoryTable(const QuantizeOptions& options);

}  // namespace qlora

#endif  // QLORA_NF4_H_

// 4-bit matrices in the forms of other libraries: torchao's NF4Tensor, bitsandbytes' CUDA kernels,
// blocks that end with the rows, zero points, 16-bit scales. Everything that qlora/nf4.h describes
// is one of these forms too. The training engine knows qlora/nf4.h alone; AsBnb and ConvertToBnb
// lead there.
#ifndef QLORA_NF4_COMPAT_H_
#define QLORA_NF4_COMPAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "qlora/context.h"
#include "qlora/nf4.h"
#include "qlora/tensor.h"

namespace qlora::compat {

// The storage of the scale of each block, its largest absolute value.
enum class ScaleForm : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kDoubleBnb,      // ScaleType::kDoubleBnb
  kDoubleTorchao,  // int8 divided by a float32 factor per scaler block, plus a mean
};

// The way from a value to its code. The rules differ at ties and for blocks of zeros only.
enum class EncodeRule : std::uint8_t {
  // The rule of QuantizeOptions.
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

// A borrowed 4-bit matrix (rows, cols).
struct View {
  const std::uint8_t* packed = nullptr;  // (rows * cols + 1) / 2 bytes, without gaps between blocks
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t block_size = 64;
  const float* code = nullptr;  // 16 values, index = nibble
  ScaleForm scale_form = ScaleForm::kF32;
  const void* scales = nullptr;  // one per block: float32, float16, bfloat16, uint8 or int8
  // kDoubleBnb: as in QuantizedView. kDoubleTorchao: without map, and `absmax` holds the factors;
  // scale = code / factor + offset.
  NestedScales nested = {};
  // kDoubleTorchao: the type to which each step of the arithmetic on scales is rounded.
  DType scale_arithmetic = DType::kF32;
  // Every row starts a block, so that a row has ceil(cols / block_size) blocks, the last one short.
  // Set only where cols is not a multiple of block_size.
  bool row_blocks = false;
  const float* shifts = nullptr;  // zero points: one per block, added to code * scale; or null

  std::int64_t size() const { return rows * cols; }
  std::int64_t blocks_per_row() const { return BlockCount(cols, block_size); }
  std::int64_t blocks() const {
    return row_blocks ? rows * blocks_per_row() : BlockCount(rows * cols, block_size);
  }
};

// Writes the float32 scales of blocks [first, first + count) to out (count).
void LoadScales(const View& q, std::int64_t first, std::int64_t count, float* out);

// The values that kTorchao picks from, for a weight of `dtype` (F32, BF16 or F16): the NF4 values
// with four decimals, rounded to dtype.
const std::array<float, 16>& TorchaoCodebook(DType dtype);

// The same memory as qlora/nf4.h sees it; nothing for a layout that bitsandbytes lacks.
std::optional<QuantizedView> AsBnb(const View& q);

struct Options {
  QuantType type = QuantType::kNf4;
  std::int64_t block_size = 64;  // values per block, at least 1
  ScaleForm scale_form = ScaleForm::kDoubleBnb;
  std::int64_t scaler_block_size = 256;  // scales per nested block under double quantization
  EncodeRule rule = EncodeRule::kBnbCpu;
  // As in QuantizeOptions. Not with kTorchao.
  bool scale_search = false;
  std::span<const float> importance = {};
  // Every row starts a block. With block_size >= cols: one scale per row.
  bool row_blocks = false;
  // Shifts each block by the middle of its range before coding and back after decoding; costs one
  // float32 per block. For data that is not centred on zero. Not with kTorchao.
  bool zero_point = false;
  std::string name = {};  // of the tensor, for error messages
};

// The form that QuantizeOptions asks for.
Options OptionsOf(const QuantizeOptions& options);

// Bytes that QuantizeInto needs for a (rows, cols) matrix, alignment included.
std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const Options& options);

// Quantizes w (rows, cols; F32, BF16 or F16) into `storage` (StorageBytes, aligned to 64 bytes) and
// returns a view of it. The result does not depend on the number of threads.
// Errors (InvalidInput): NaN or Inf in w (with its index), a scale beyond float16 or bfloat16, bad
// options.
View QuantizeInto(Context& context, ConstMatrixView w, const Options& options,
                  std::span<std::byte> storage);

// An owned 4-bit matrix. Copies share the same immutable storage.
class Matrix {
 public:
  Matrix() = default;
  // Errors (InvalidInput): sizes or block sizes below what a matrix has, or of more than 2^48
  // values.
  Matrix(View view, std::shared_ptr<const void> storage);
  // The layout of bitsandbytes is one of the forms. Shares the storage.
  Matrix(const QuantizedMatrix& matrix);

  const View& view() const { return view_; }
  const std::shared_ptr<const void>& storage() const { return storage_; }
  std::int64_t rows() const { return view_.rows; }
  std::int64_t cols() const { return view_.cols; }
  // Bytes of codes, scales, nested scales, offset and zero points; the codebook not counted.
  std::size_t bytes() const;
  double bits_per_weight() const;
  // Bytes as float32 / bytes().
  double compression_ratio() const;

 private:
  View view_;
  std::shared_ptr<const void> storage_;
};

// As QuantizeInto, into separate storage.
Matrix Quantize(Context& context, ConstMatrixView w, const Options& options = {});

// The same values in the layout of bitsandbytes, bit for bit: the codes are shared, scales that are
// not float32 or kDoubleBnb become float32. Nothing for row blocks and zero points, which that
// layout cannot express.
std::optional<QuantizedMatrix> ConvertToBnb(const Matrix& matrix);

// out (rows, cols; F32, BF16 or F16) = code * scale (+ zero point): one float32 product (and one
// float32 sum), rounded to the dtype of out. Errors (InvalidInput): another shape or dtype.
void Dequantize(Context& context, const View& q, MatrixView out);
// Rows [first_row, first_row + out.rows) in the calling thread; may be called inside a task.
void DequantizeRows(const View& q, std::int64_t first_row, MatrixView out);

// Double quantization of scales (n) by kDoubleBnb (with the ties of `rule`) or kDoubleTorchao,
// whose codes are int8 bits and whose nested scales are factors. arithmetic: the type to which
// kDoubleTorchao rounds each step (F32, BF16 or F16), the dtype of the scales in torchao.
DoubleQuantizedScales DoubleQuantizeScales(std::span<const float> scales, ScaleForm scheme,
                                           std::int64_t scaler_block_size = 256,
                                           EncodeRule rule = EncodeRule::kBnbCpu,
                                           DType arithmetic = DType::kF32);
// The inverse. Errors (InvalidInput): sizes that do not agree.
void DequantizeScales(std::span<const std::uint8_t> codes, std::span<const float> nested_scales,
                      float offset, ScaleForm scheme, std::int64_t scaler_block_size,
                      std::span<float> out, DType arithmetic = DType::kF32);

// Bits of one weight in whole blocks: 4 and its share of the scales and zero points.
double BitsPerWeight(const Options& options);

}  // namespace qlora::compat

#endif  // QLORA_NF4_COMPAT_H_

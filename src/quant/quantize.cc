#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "base/arena.h"
#include "base/check.h"
#include "quant/encode.h"
#include "quant/kernels.h"
#include "quant/layout.h"
#include "quant/scales.h"

namespace qlora {
namespace {

// Values per task: enough to hide the hand-out of tasks, small enough to share work evenly.
constexpr std::int64_t kEncodedPerTask = 1 << 18;

std::string Subject(const QuantizeOptions& options) {
  return options.name.empty() ? "quantize" : fmt::format("quantize: tensor '{}'", options.name);
}

void CheckOptions(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidInput, Subject(options) + ": " + what);
  };
  if (rows < 0 || cols < 0)
    fail(fmt::format("expected a matrix, found shape ({}, {})", rows, cols));
  if (options.block_size < 1) {
    fail(fmt::format("expected block_size >= 1, found {}", options.block_size));
  }
  if (IsDouble(options.scale_type) && options.scaler_block_size < 1) {
    fail(fmt::format("expected scaler_block_size >= 1, found {}", options.scaler_block_size));
  }
  if (options.rule == EncodeRule::kTorchao &&
      (options.type != QuantType::kNf4 || options.zero_point || options.scale_search)) {
    fail("torchao's rule knows neither FP4 nor zero points nor scale search");
  }
  if (options.importance.empty()) return;
  if (!options.scale_search || std::ssize(options.importance) != cols) {
    fail(fmt::format("importance needs scale_search and {} values, one per column; found {}", cols,
                     options.importance.size()));
  }
  for (std::size_t c = 0; c < options.importance.size(); ++c) {
    if (!(options.importance[c] >= 0) || std::isinf(options.importance[c])) {
      fail(fmt::format("importance of column {} is {}; expected a finite value >= 0", c,
                       options.importance[c]));
    }
  }
}

// What a quantized matrix consists of, and where each piece begins in its storage.
struct Layout {
  QuantizedView view;  // without pointers
  std::size_t scales = 0;
  std::size_t nested_scales = 0;
  std::size_t shifts = 0;
  std::size_t end = 0;
};

Layout LayOut(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options, DType dtype) {
  Layout layout;
  QuantizedView& q = layout.view;
  q.rows = rows;
  q.cols = cols;
  q.block_size = options.block_size;
  if (options.row_blocks && cols > 0) {
    q.block_size = std::min(options.block_size, cols);
    q.row_blocks = cols % q.block_size != 0;
  }
  q.code = CodebookOf(options.type, options.rule, dtype).data();
  q.scale_type = options.scale_type;
  q.nested_block_size = options.scaler_block_size;
  if (options.rule == EncodeRule::kTorchao) q.scale_arithmetic = dtype;

  const auto blocks = static_cast<std::size_t>(q.blocks());
  std::size_t at = AlignUp(static_cast<std::size_t>(PackedBytes(q.size())));
  const auto place = [&at](std::size_t bytes) {
    const std::size_t begin = at;
    at += AlignUp(bytes);
    return begin;
  };
  layout.scales = place(blocks * ScaleBytes(q.scale_type));
  if (IsDouble(q.scale_type)) {
    layout.nested_scales =
        place(static_cast<std::size_t>(BlockCount(q.blocks(), q.nested_block_size)) * 4);
  }
  if (options.zero_point) layout.shifts = place(blocks * 4);
  layout.end = at;
  return layout;
}

// Half way between the least and the largest value of a block, rounded to float32.
template <typename T>
float Midpoint(const ConstMatrixView& w, const BlockRange& range) {
  float least = std::numeric_limits<float>::infinity();
  float largest = -least;
  ForEachPiece<T>(w, range.begin, range.count, [&](const T* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      least = std::min(least, ToFloat(x[i]));
      largest = std::max(largest, ToFloat(x[i]));
    }
  });
  const float middle = least / 2 + largest / 2;
  return std::isfinite(middle) ? middle : 0;  // NaN and Inf are found with the absmax
}

// What the scale search needs to hold of one block, padded to whole steps.
struct Scratch {
  std::vector<float> x;
  std::vector<float> weights;
};

// The scale of a block that scale_search prefers to its absmax.
template <typename T>
float SearchScale(const ConstMatrixView& w, const QuantizeOptions& options, const BlockRange& range,
                  float middle, float absmax, Scratch* scratch) {
  if (absmax == 0) return absmax;
  const auto n = static_cast<std::size_t>(BlockCount(range.count, kSearchStep) * kSearchStep);
  const float factor = 1.0f / std::max(absmax, 1e-38f);
  float* x = scratch->x.data();
  ForEachPiece<T>(w, range.begin, range.count, [&](const T* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) *x++ = (ToFloat(values[i]) - middle) * factor;
  });
  std::fill(x, scratch->x.data() + n, 0.0f);
  if (!options.importance.empty()) {
    auto col = static_cast<std::size_t>(range.begin % w.cols);
    for (std::size_t i = 0; i < n; ++i) {
      scratch->weights[i] = options.importance[col];
      if (++col == options.importance.size()) col = 0;
    }
  }
  const float scale =
      absmax *
      BestMultiplier({.x = scratch->x.data(),
                      .weights = options.importance.empty() ? nullptr : scratch->weights.data(),
                      .n = static_cast<std::int64_t>(n),
                      .type = options.type,
                      .rule = options.rule});
  return std::isfinite(scale) ? scale : absmax;
}

// Finds the scale (and shift) of one block; false when the block holds NaN or Inf.
template <typename T>
bool FindScale(const ConstMatrixView& w, const QuantizeOptions& options, const BlockRange& range,
               Scratch* scratch, float* scale, float* shift) {
  if (shift != nullptr) *shift = Midpoint<T>(w, range);
  const float middle = shift != nullptr ? *shift : 0;
  std::uint32_t bits = 0;
  ForEachPiece<T>(w, range.begin, range.count, [&](const T* x, std::int64_t n) {
    bits = std::max(bits, MaxMagnitudeBits(x, n, middle));
  });
  if (bits >= kInfBits) return false;
  *scale = std::bit_cast<float>(bits);
  if (options.scale_search) {
    *scale = SearchScale<T>(w, options, range, middle, *scale, scratch);
  }
  return true;
}

// Encodes one block by its scale.
template <typename T>
void EncodeBlock(const ConstMatrixView& w, const QuantizeOptions& options, const QuantizedView& q,
                 const BlockRange& range, std::uint8_t* packed, float* scale, const float* shift) {
  std::int64_t at = range.begin;
  if (options.rule == EncodeRule::kTorchao) {
    return ForEachPiece<T>(w, range.begin, range.count, [&](const T* x, std::int64_t n) {
      EncodeSpanTorchao(x, n, *scale, packed, at);
      at += n;
    });
  }
  const bool full = range.count == q.block_size;
  const Normalizer normalizer =
      NormalizerOf(options.rule, full, shift != nullptr ? *shift : 0, scale);
  const EncodeTable& table = EncodeTableOf(options.type, options.rule);
  ForEachPiece<T>(w, range.begin, range.count, [&](const T* x, std::int64_t n) {
    EncodeSpan(x, n, normalizer, table, packed, at);
    at += n;
  });
}

// Throws the error of the first NaN, Inf or (with zero points) overflow in the given block.
template <typename T>
[[noreturn]] void ThrowNotFinite(const ConstMatrixView& w, const QuantizedView& q,
                                 const QuantizeOptions& options, std::int64_t block) {
  const BlockRange range = RangeOfBlock(q, block);
  for (std::int64_t i = range.begin; i < range.begin + range.count; ++i) {
    const float value = ToFloat(w.Row<T>(i / w.cols)[i % w.cols]);
    if (!std::isfinite(value)) {
      ThrowInvalidInput(
          "{}: value {} at index {} (row {}, column {}); expected finite values. Check the file "
          "for a damaged download or a diverged training run",
          Subject(options), value, i, i / w.cols, i % w.cols);
    }
  }
  ThrowInvalidInput("{}: the range of block {} overflows float32; quantize it without zero_point",
                    Subject(options), block);
}

// Whether the vector kernels know how to encode: whole blocks that are contiguous in w.
bool HasKernel(const ConstMatrixView& w, const QuantizeOptions& options, const QuantizedView& q) {
  return q.plain() && options.rule != EncodeRule::kTorchao && q.block_size % kKernelStep == 0 &&
         (w.stride == w.cols || w.cols % q.block_size == 0);
}

// Encodes blocks [begin, end), all of them whole, by the kernels. Returns the first block that was
// not encoded because it holds NaN or Inf, or end.
std::int64_t EncodeByKernel(const ConstMatrixView& w, const QuantizeOptions& options,
                            const QuantizedView& q, std::int64_t begin, std::int64_t end,
                            std::uint8_t* packed, float* scales) {
  while (begin < end) {
    const std::int64_t at = begin * q.block_size;
    const std::int64_t row_end =
        w.stride == w.cols ? end : std::min(end, (at / w.cols + 1) * w.cols / q.block_size);
    const std::int64_t offset = at / w.cols * w.stride + at % w.cols;
    const std::int64_t done = EncodeBlocks({
        .x = static_cast<const char*>(w.data) +
             static_cast<std::ptrdiff_t>(BytesOf(w.dtype, 1)) * offset,
        .dtype = w.dtype,
        .blocks = row_end - begin,
        .block_size = q.block_size,
        .type = options.type,
        .rule = options.rule,
        .packed = packed + at / 2,
        .scales = scales + begin,
        .has_scales = options.scale_search,
    });
    begin += done;
    if (begin < row_end) return begin;
  }
  return end;
}

template <typename T>
void EncodeMatrix(Context& context, const ConstMatrixView& w, const QuantizeOptions& options,
                  const QuantizedView& q, std::uint8_t* packed, float* scales, float* shifts) {
  const std::int64_t blocks = q.blocks();
  const std::int64_t kernel_blocks = HasKernel(w, options, q) ? q.size() / q.block_size : 0;
  // A task starts at an even value, so that no two tasks write the same byte.
  const std::int64_t unit = 2 * (q.row_blocks ? q.blocks_per_row() : 1);
  const std::int64_t per_task =
      std::max<std::int64_t>(1, kEncodedPerTask / (q.block_size * unit)) * unit;
  std::atomic<std::int64_t> first_bad{blocks};
  const auto report_bad = [&](std::int64_t block) {
    std::int64_t seen = first_bad.load();
    while (block < seen && !first_bad.compare_exchange_weak(seen, block)) {
    }
  };
  std::vector<Scratch> scratches(context.threads());
  if (options.scale_search) {
    const auto n = static_cast<std::size_t>(BlockCount(q.block_size, kSearchStep) * kSearchStep);
    for (Scratch& scratch : scratches) scratch = {std::vector<float>(n), std::vector<float>(n)};
  }
  context.ParallelFor(BlockCount(blocks, per_task), [&](std::int64_t task, int worker) {
    const std::int64_t begin = task * per_task;
    const std::int64_t end = std::min(blocks, begin + per_task);
    const std::int64_t by_kernel = std::clamp(kernel_blocks, begin, end);
    Scratch* scratch = &scratches[worker];
    const auto find_scale = [&](std::int64_t b) {
      const bool finite = FindScale<T>(w, options, RangeOfBlock(q, b), scratch, scales + b,
                                       shifts == nullptr ? nullptr : shifts + b);
      if (!finite) report_bad(b);
      return finite;
    };
    if (options.scale_search) {  // else the kernels find absmax on their way
      for (std::int64_t b = begin; b < by_kernel; ++b) {
        if (!find_scale(b)) return;
      }
    }
    const std::int64_t done = EncodeByKernel(w, options, q, begin, by_kernel, packed, scales);
    if (done < by_kernel) return report_bad(done);
    for (std::int64_t b = by_kernel; b < end; ++b) {
      if (!find_scale(b)) return;
      EncodeBlock<T>(w, options, q, RangeOfBlock(q, b), packed, scales + b,
                     shifts == nullptr ? nullptr : shifts + b);
    }
  });
  if (first_bad < blocks) ThrowNotFinite<T>(w, q, options, first_bad);
}

// Stores the float32 scales in the form of q.scale_type and completes q.
void StoreScales(Context& context, const QuantizeOptions& options, std::span<const float> scales,
                 std::byte* stored, float* nested_scales, QuantizedView* q) {
  switch (q->scale_type) {
    case ScaleType::kF32:
      break;  // encoded in place
    case ScaleType::kF16:
      for (std::size_t b = 0; b < scales.size(); ++b) {
        const Float16 half = ToFloat16(scales[b]);
        if (half.bits == 0x7c00) {
          ThrowInvalidInput(
              "{}: block {} has scale {}, beyond the largest float16 (65504); store scales as bf16 "
              "or f32",
              Subject(options), b, scales[b]);
        }
        reinterpret_cast<Float16*>(stored)[b] = half;
      }
      break;
    case ScaleType::kBF16:
      for (std::size_t b = 0; b < scales.size(); ++b) {
        const BFloat16 half = ToBFloat16(scales[b]);
        if (half.bits == 0x7f80) {
          ThrowInvalidInput(
              "{}: block {} has scale {}, beyond the largest bfloat16; store f32 scales",
              Subject(options), b, scales[b]);
        }
        reinterpret_cast<BFloat16*>(stored)[b] = half;
      }
      break;
    case ScaleType::kDoubleBnb:
    case ScaleType::kDoubleTorchao: {
      const NestedScales out = {reinterpret_cast<std::uint8_t*>(stored), nested_scales,
                                q->nested_block_size};
      if (q->scale_type == ScaleType::kDoubleBnb) {
        q->offset = DoubleQuantizeBnb(&context, scales, options.rule, out);
        q->nested_code = kSignedDynamicMap.data();
      } else {
        q->offset = DoubleQuantizeTorchao(scales, q->scale_arithmetic, out);
      }
      q->nested_scales = nested_scales;
    }
  }
}

}  // namespace

std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  CheckOptions(rows, cols, options);
  return LayOut(rows, cols, options, DType::kF32).end;
}

QuantizedView PlanQuantized(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  CheckOptions(rows, cols, options);
  return LayOut(rows, cols, options, DType::kF32).view;
}

QuantizedView QuantizeInto(Context& context, ConstMatrixView w, const QuantizeOptions& options,
                           std::span<std::byte> storage) {
  CheckOptions(w.rows, w.cols, options);
  const Layout layout = LayOut(w.rows, w.cols, options, w.dtype);
  if (storage.size() < layout.end || reinterpret_cast<std::uintptr_t>(storage.data()) % 64 != 0) {
    ThrowInvalidInput("{}: expected {} bytes of storage aligned to 64, found {}", Subject(options),
                      layout.end, storage.size());
  }
  QuantizedView q = layout.view;
  std::byte* base = storage.data();
  auto* packed = reinterpret_cast<std::uint8_t*>(base);
  std::byte* stored = base + layout.scales;
  auto* nested_scales = reinterpret_cast<float*>(base + layout.nested_scales);
  auto* shifts = options.zero_point ? reinterpret_cast<float*>(base + layout.shifts) : nullptr;
  q.packed = packed;
  q.scales = stored;
  q.shifts = shifts;
  if (q.size() == 0) return q;

  std::vector<float> unpacked_scales;
  if (q.scale_type != ScaleType::kF32) {
    unpacked_scales.resize(q.blocks());
  }
  float* scales =
      q.scale_type == ScaleType::kF32 ? reinterpret_cast<float*>(stored) : unpacked_scales.data();
  switch (w.dtype) {
    case DType::kF32:
      EncodeMatrix<float>(context, w, options, q, packed, scales, shifts);
      break;
    case DType::kBF16:
      EncodeMatrix<BFloat16>(context, w, options, q, packed, scales, shifts);
      break;
    case DType::kF16:
      EncodeMatrix<Float16>(context, w, options, q, packed, scales, shifts);
      break;
    default:
      ThrowInvalidInput("{}: expected F32, BF16 or F16 values, found {}", Subject(options),
                        NameOf(w.dtype));
  }
  if (q.size() % 2 == 1) packed[q.size() / 2] |= options.type == QuantType::kNf4 ? 7 : 0;
  StoreScales(context, options, unpacked_scales, stored, nested_scales, &q);
  return q;
}

QuantizedMatrix Quantize(Context& context, ConstMatrixView w, const QuantizeOptions& options) {
  auto arena = std::make_shared<Arena>(StorageBytes(w.rows, w.cols, options));
  const QuantizedView view = QuantizeInto(context, w, options, {arena->data(), arena->bytes()});
  return {view, std::move(arena)};
}

}  // namespace qlora

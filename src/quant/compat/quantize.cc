// Quantization to any form: options, storage, the tasks that encode blocks (with the encoder of
// src/quant or torchao's), and the scales in the form that is asked for.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/arena.h"
#include "base/check.h"
#include "quant/block_encoder.h"
#include "quant/compat/cuda_tables.h"
#include "quant/compat/layout.h"
#include "quant/compat/torchao.h"
#include "quant/dynamic_map.h"
#include "quant/encode.h"
#include "quant/quantize_checks.h"

namespace qlora::compat {
namespace {

// The part of the options that the core has too, and checks.
QuantizeOptions CommonOptions(const Options& options) {
  return {.type = options.type,
          .block_size = options.block_size,
          .scale_type = IsDouble(options.scale_form) ? ScaleType::kDoubleBnb : ScaleType::kF32,
          .scaler_block_size = options.scaler_block_size,
          .scale_search = options.scale_search,
          .importance = options.importance,
          .name = options.name};
}

void CheckOptions(std::int64_t rows, std::int64_t cols, const Options& options) {
  CheckQuantizeOptions(rows, cols, CommonOptions(options));
  if (options.rule == EncodeRule::kTorchao &&
      (options.type != QuantType::kNf4 || options.zero_point || options.scale_search)) {
    ThrowInvalidInput("{}: torchao's rule knows neither FP4 nor zero points nor scale search",
                      QuantizeSubject(options.name));
  }
}

// The pieces of a quantized matrix, and the place in its storage at which each begins:
//   | packed codes | scales or their codes | nested scales | zero points |
struct Plan {
  View view;  // without pointers
  std::size_t scales = 0;
  std::size_t nested = 0;
  std::size_t shifts = 0;
  std::size_t end = 0;
};

// dtype: of the weight.
Plan PlanStorage(std::int64_t rows, std::int64_t cols, const Options& options, DType dtype) {
  CheckOptions(rows, cols, options);
  const bool torchao = options.rule == EncodeRule::kTorchao;
  Plan plan;
  View& q = plan.view;
  q.rows = rows;
  q.cols = cols;
  q.block_size = options.block_size;
  if (options.row_blocks && cols > 0) {
    // Blocks of a row are no longer than the row. Where the row is a multiple of the block, both
    // rules cut alike, and the flat rule, which kernels know, is kept.
    q.block_size = std::min(options.block_size, cols);
    q.row_blocks = cols % q.block_size != 0;
  }
  q.code = torchao ? TorchaoCodebook(dtype).data() : CodebookOf(options.type);
  q.scale_form = options.scale_form;
  q.nested.block_size = options.scaler_block_size;
  // torchao computes scales in the type of the weight, so the type belongs to the format.
  if (torchao) q.scale_arithmetic = dtype;

  const std::int64_t nested_blocks =
      IsDouble(q.scale_form) ? BlockCount(q.blocks(), q.nested.block_size) : 0;
  plan.scales = AlignUp(PackedBytes(q.size()));
  plan.nested = plan.scales + AlignUp(q.blocks() * ScaleBytes(q.scale_form));
  plan.shifts = plan.nested + AlignUp(nested_blocks * sizeof(float));
  plan.end = plan.shifts + (options.zero_point ? AlignUp(q.blocks() * sizeof(float)) : 0);
  return plan;
}

BlockEncoder MakeEncoder(const View& q, const Options& options) {
  const EncodeTable& table = options.rule == EncodeRule::kBnbCuda ? CudaTableOf(options.type)
                                                                  : EncodeTableOf(options.type);
  std::optional<ScaleSearch> search;
  if (options.scale_search) {
    search.emplace(table, q.code, std::min(q.block_size, q.size()), options.importance);
  }
  return {table, q.block_size, std::move(search)};
}

// Half way between the least and the largest of n values, rounded to float32; 0 where that is not
// finite, because NaN and Inf are found with the absmax.
float Midpoint(const float* x, std::int64_t n) {
  float least = std::numeric_limits<float>::infinity();
  float largest = -least;
  for (std::int64_t i = 0; i < n; ++i) {
    least = std::min(least, x[i]);
    largest = std::max(largest, x[i]);
  }
  // Halved before the sum: least + largest can overflow where both are near the largest float32.
  const float middle = least / 2 + largest / 2;
  return std::isfinite(middle) ? middle : 0;
}

// Subtracts the middle of its range from each block of n values.
void Centre(float* x, std::int64_t n, std::int64_t block_size, float* shifts) {
  for (std::int64_t begin = 0; begin < n; begin += block_size, ++shifts) {
    const std::int64_t count = std::min(block_size, n - begin);
    *shifts = Midpoint(x + begin, count);
    for (std::int64_t i = begin; i < begin + count; ++i) x[i] -= *shifts;
  }
}

// The destination of codes, float32 scales and zero points (or null).
struct Output {
  std::uint8_t* packed;
  float* scales;
  float* shifts;
};

// Runs as in quant/block_encoder.h; with row blocks, a run is a row, and a task has an even number
// of rows.
template <typename Encode>
void ForEachRun(Context& context, const View& q, const Encode& encode) {
  if (!q.row_blocks) return qlora::ForEachRun(context, q.size(), q.block_size, encode);
  // Two rows have an even number of values, so every task begins with a whole byte whatever cols
  // is: no byte is written by two threads.
  const std::int64_t per_task = std::max<std::int64_t>(1, kEncodedPerTask / q.cols / 2) * 2;
  context.ParallelFor(BlockCount(q.rows, per_task), [&](std::int64_t task, int worker) {
    const std::int64_t last = std::min(q.rows, (task + 1) * per_task);
    for (std::int64_t r = task * per_task; r < last; ++r) {
      encode(BlockRun{r * q.blocks_per_row(), r * q.cols, q.cols}, worker);
    }
  });
}

// T: of the values of w, which are read in place where nothing has to be done to them before.
template <typename T>
void EncodeMatrix(Context& context, const ConstMatrixView& w, const Options& options, const View& q,
                  const Output& out) {
  const bool torchao = options.rule == EncodeRule::kTorchao;
  const bool in_place = !torchao && out.shifts == nullptr && (w.rows == 1 || w.stride == w.cols);
  std::vector<BlockEncoder> encoders(context.threads(), MakeEncoder(q, options));
  std::vector<std::vector<float>> rooms(context.threads());  // gathered values
  // Only the fact is shared between threads; ThrowNotFinite looks for the first place, which is the
  // same for every number of threads.
  std::atomic<bool> finite = true;
  ForEachRun(context, q, [&](const BlockRun& run, int worker) {
    float* scales = out.scales + run.first_block;
    const auto encode = [&](const auto* x) {
      return encoders[worker].Encode(x, run.count, run.begin, out.packed, scales);
    };
    if (in_place) {
      if (!encode(w.Row<T>(0) + run.begin)) finite = false;
      return;
    }
    std::vector<float>& x = rooms[worker];
    x.resize(run.count);
    GatherFloats(w, run.begin, run.count, x.data());
    if (out.shifts != nullptr) {
      Centre(x.data(), run.count, q.block_size, out.shifts + run.first_block);
    }
    const bool encoded = torchao ? EncodeTorchao(x.data(), run.count, q.block_size, w.dtype,
                                                 run.begin, out.packed, scales)
                                 : encode(x.data());
    if (!encoded) finite = false;
  });
  // x minus the middle of its range is at most half the range, so only NaN and Inf are not finite.
  if (!finite) ThrowNotFinite(context, w, options.name);
}

// Scales as float16 or bfloat16.
template <typename Half, typename Round>
void StoreHalves(std::span<const float> scales, const Round& round, const Options& options,
                 const char* advice, Half* out) {
  for (std::size_t b = 0; b < scales.size(); ++b) {
    out[b] = round(scales[b]);
    // A scale that becomes infinity would decode a whole block to infinities and NaN (0 *
    // infinity).
    if (std::isfinite(ToFloat(out[b]))) continue;
    ThrowInvalidInput("{}: block {} has scale {}, beyond the largest {}",
                      QuantizeSubject(options.name), b, scales[b], advice);
  }
}

// Stores the float32 scales in the form of q and completes q. nested: room for nested scales.
void StoreScales(Context& context, const Options& options, std::span<const float> scales,
                 std::byte* stored, float* nested, View* q) {
  const ScaleCodes codes = {reinterpret_cast<std::uint8_t*>(stored), nested, q->nested.block_size};
  switch (q->scale_form) {
    case ScaleForm::kF32:
      return;  // written where they stay
    case ScaleForm::kF16:
      return StoreHalves(
          scales, [](float scale) { return ToFloat16(scale); }, options,
          "float16 (65504); store scales as bf16 or f32", reinterpret_cast<Float16*>(stored));
    case ScaleForm::kBF16:
      return StoreHalves(
          scales, [](float scale) { return ToBFloat16(scale); }, options,
          "bfloat16; store f32 scales", reinterpret_cast<BFloat16*>(stored));
    case ScaleForm::kDoubleBnb: {
      const MapTie tie = options.rule == EncodeRule::kBnbCuda ? MapTie::kEven : MapTie::kLower;
      q->nested.offset = DoubleQuantize(&context, scales, tie, codes);
      q->nested.map = DynamicMap::Signed().values().data();
      q->nested.absmax = nested;
      return;
    }
    case ScaleForm::kDoubleTorchao:
      q->nested.offset = DoubleQuantizeTorchao(scales, q->scale_arithmetic, codes);
      q->nested.absmax = nested;
  }
}

}  // namespace

std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const Options& options) {
  return PlanStorage(rows, cols, options, DType::kF32).end;
}

View PlanView(std::int64_t rows, std::int64_t cols, const Options& options, DType dtype) {
  return PlanStorage(rows, cols, options, dtype).view;
}

View QuantizeInto(Context& context, ConstMatrixView w, const Options& options,
                  std::span<std::byte> storage) {
  const Plan plan = PlanStorage(w.rows, w.cols, options, w.dtype);
  CheckDType(w, options.name);
  CheckStorage(storage, plan.end, options.name);
  View q = plan.view;
  std::byte* base = storage.data();
  auto* packed = reinterpret_cast<std::uint8_t*>(base);
  auto* shifts = options.zero_point ? reinterpret_cast<float*>(base + plan.shifts) : nullptr;
  q.packed = packed;
  q.scales = base + plan.scales;
  q.shifts = shifts;
  if (q.size() == 0) return q;

  // Float32 scales are written where they stay; others first to a vector, which is then stored.
  const bool stays = q.scale_form == ScaleForm::kF32;
  std::vector<float> scales(stays ? 0 : q.blocks());
  const Output out = {packed, stays ? reinterpret_cast<float*>(base + plan.scales) : scales.data(),
                      shifts};
  switch (w.dtype) {
    case DType::kBF16:
      EncodeMatrix<BFloat16>(context, w, options, q, out);
      break;
    case DType::kF16:
      EncodeMatrix<Float16>(context, w, options, q, out);
      break;
    default:
      EncodeMatrix<float>(context, w, options, q, out);
  }
  // The last byte holds one code only.
  if (q.size() % 2 == 1) packed[q.size() / 2] |= OddNibble(options.type);
  StoreScales(context, options, scales, base + plan.scales,
              reinterpret_cast<float*>(base + plan.nested), &q);
  return q;
}

Matrix Quantize(Context& context, ConstMatrixView w, const Options& options) {
  auto arena = std::make_shared<Arena>(StorageBytes(w.rows, w.cols, options));
  const View view = QuantizeInto(context, w, options, {arena->data(), arena->bytes()});
  return {view, std::move(arena)};
}

}  // namespace qlora::compat

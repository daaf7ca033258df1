// Quantization to the layout of bitsandbytes: options, storage, and the tasks that encode blocks.
#include <algorithm>
#include <atomic>

#include "base/arena.h"
#include "quant/block_encoder.h"
#include "quant/double_quant.h"
#include "quant/dynamic_map.h"
#include "quant/encode.h"
#include "quant/layout.h"
#include "quant/quantize_checks.h"

namespace qlora {
namespace {

// The pieces of a quantized matrix, and the place in its storage at which each begins:
//   | packed codes | scales or their codes | nested absmax (double quantization) |
// Each piece begins at a multiple of 64 bytes.
struct StoragePlan {
  QuantizedView view;  // without pointers
  std::size_t scales = 0;
  std::size_t nested_absmax = 0;
  std::size_t end = 0;
};

StoragePlan PlanStorage(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  CheckQuantizeOptions(rows, cols, options);
  StoragePlan plan;
  QuantizedView& q = plan.view;
  q.rows = rows;
  q.cols = cols;
  q.block_size = options.block_size;
  q.code = CodebookOf(options.type);
  q.scale_type = options.scale_type;
  q.nested.block_size = options.scaler_block_size;

  plan.scales = AlignUp(PackedBytes(q.size()));
  plan.nested_absmax = plan.scales + AlignUp(q.blocks() * ScaleBytes(q.scale_type));
  plan.end = plan.nested_absmax;
  if (q.scale_type == ScaleType::kDoubleBnb) {
    plan.end += AlignUp(BlockCount(q.blocks(), q.nested.block_size) * sizeof(float));
  }
  return plan;
}

// Codes and float32 scales (blocks) of all blocks. Values in strided rows are gathered task by
// task.
template <typename T>
void EncodeMatrix(Context& context, const ConstMatrixView& w, const QuantizeOptions& options,
                  const QuantizedView& q, std::uint8_t* packed, float* scales) {
  const EncodeTable& table = EncodeTableOf(options.type);
  std::optional<ScaleSearch> search;
  if (options.scale_search) {
    search.emplace(table, q.code, std::min(q.block_size, q.size()), options.importance);
  }
  std::vector<BlockEncoder> encoders(context.threads(), {table, q.block_size, search});
  std::vector<std::vector<float>> rooms(context.threads());  // values of strided rows
  const bool contiguous = w.rows == 1 || w.stride == w.cols;
  std::atomic<bool> finite = true;
  ForEachRun(context, q.size(), q.block_size, [&](const BlockRun& run, int worker) {
    const auto encode = [&](const auto* x) {
      return encoders[worker].Encode(x, run.count, run.begin, packed, scales + run.first_block);
    };
    if (contiguous) {
      if (!encode(w.Row<T>(0) + run.begin)) finite = false;
      return;
    }
    rooms[worker].resize(run.count);
    GatherFloats(w, run.begin, run.count, rooms[worker].data());
    if (!encode(rooms[worker].data())) finite = false;
  });
  if (!finite) ThrowNotFinite(context, w, options.name);
}

}  // namespace

std::size_t StorageBytes(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  return PlanStorage(rows, cols, options).end;
}

QuantizedView PlanQuantized(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  return PlanStorage(rows, cols, options).view;
}

QuantizedView QuantizeInto(Context& context, ConstMatrixView w, const QuantizeOptions& options,
                           std::span<std::byte> storage) {
  const StoragePlan plan = PlanStorage(w.rows, w.cols, options);
  CheckDType(w, options.name);
  CheckStorage(storage, plan.end, options.name);
  QuantizedView q = plan.view;
  auto* packed = reinterpret_cast<std::uint8_t*>(storage.data());
  std::byte* stored = storage.data() + plan.scales;
  q.packed = packed;
  q.scales = stored;
  if (q.size() == 0) return q;

  // Float32 scales are written where they stay; others first to a vector, which is then coded.
  const bool nested = q.scale_type == ScaleType::kDoubleBnb;
  std::vector<float> to_code(nested ? q.blocks() : 0);
  float* scales = nested ? to_code.data() : reinterpret_cast<float*>(stored);
  switch (w.dtype) {
    case DType::kBF16:
      EncodeMatrix<BFloat16>(context, w, options, q, packed, scales);
      break;
    case DType::kF16:
      EncodeMatrix<Float16>(context, w, options, q, packed, scales);
      break;
    default:
      EncodeMatrix<float>(context, w, options, q, packed, scales);
  }
  // The last byte holds one code only.
  if (q.size() % 2 == 1) packed[q.size() / 2] |= OddNibble(options.type);
  if (!nested) return q;
  auto* absmax = reinterpret_cast<float*>(storage.data() + plan.nested_absmax);
  q.nested.map = DynamicMap::Signed().values().data();
  q.nested.absmax = absmax;
  q.nested.offset =
      DoubleQuantize(&context, to_code, MapTie::kLower,
                     {reinterpret_cast<std::uint8_t*>(stored), absmax, q.nested.block_size});
  return q;
}

QuantizedMatrix Quantize(Context& context, ConstMatrixView w, const QuantizeOptions& options) {
  auto arena = std::make_shared<Arena>(StorageBytes(w.rows, w.cols, options));
  const QuantizedView view = QuantizeInto(context, w, options, {arena->data(), arena->bytes()});
  return {view, std::move(arena)};
}

}  // namespace qlora

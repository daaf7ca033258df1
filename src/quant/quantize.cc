// Quantization to the layout of bitsandbytes: options, storage, and the tasks that encode blocks.
#include <algorithm>
#include <cmath>

#include "base/arena.h"
#include "base/check.h"
#include "quant/block_encoder.h"
#include "quant/double_quant.h"
#include "quant/dynamic_map.h"
#include "quant/encode.h"
#include "quant/layout.h"

namespace qlora {
namespace {

// What a quantized matrix consists of, and where each piece begins in its storage.
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

// scales (blocks): float32, out.
template <typename T>
void EncodeMatrix(Context& context, const ConstMatrixView& w, const QuantizeOptions& options,
                  const QuantizedView& q, std::uint8_t* packed, float* scales) {
  const std::int64_t blocks = q.blocks();
  // A task begins at an even value, so that no two tasks write the same byte.
  const std::int64_t per_task = std::max<std::int64_t>(1, kEncodedPerTask / q.block_size / 2) * 2;
  std::optional<ScaleSearch> search;
  if (options.scale_search) {
    search.emplace(EncodeTableOf(options.type), q.code, std::min(q.block_size, q.size()),
                   options.importance);
  }
  std::vector<BlockEncoder> encoders(
      context.threads(), BlockEncoder(EncodeTableOf(options.type), q.block_size, search));
  const bool contiguous = w.rows == 1 || w.stride == w.cols;
  std::vector<std::vector<float>> rooms(context.threads());  // values of strided rows
  FirstBlock bad(blocks);
  context.ParallelFor(BlockCount(blocks, per_task), [&](std::int64_t task, int worker) {
    const std::int64_t first = task * per_task;
    const std::int64_t last = std::min(blocks, first + per_task);
    const std::int64_t begin = first * q.block_size;
    const std::int64_t end = last == blocks ? q.size() : last * q.block_size;
    const auto encode = [&](const auto* x) {
      return encoders[worker].Encode(x, end - begin, begin, packed, scales + first);
    };
    std::int64_t done = 0;
    if (contiguous) {
      done = encode(w.Row<T>(0) + begin);
    } else {
      rooms[worker].resize(end - begin);
      GatherFloats(w, begin, end - begin, rooms[worker].data());
      done = encode(rooms[worker].data());
    }
    if (first + done < last) bad.Report(first + done);
  });
  if (bad.Get()) CheckFinite(context, w, options.name);
}

}  // namespace

void CheckQuantizeOptions(std::int64_t rows, std::int64_t cols, const QuantizeOptions& options) {
  const auto fail = [&](const std::string& what) {
    ThrowInvalidInput("{}: {}", QuantizeSubject(options.name), what);
  };
  if (rows < 0 || cols < 0) {
    fail(fmt::format("expected a matrix, found shape ({}, {})", rows, cols));
  }
  if (options.block_size < 1) {
    fail(fmt::format("expected block_size >= 1, found {}", options.block_size));
  }
  if (options.scale_type == ScaleType::kDoubleBnb && options.scaler_block_size < 1) {
    fail(fmt::format("expected scaler_block_size >= 1, found {}", options.scaler_block_size));
  }
  if (options.importance.empty()) return;
  if (!options.scale_search || std::ssize(options.importance) != cols) {
    fail(fmt::format("importance needs scale_search and {} values, one per column; found {}", cols,
                     options.importance.size()));
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    if (!(options.importance[c] >= 0) || std::isinf(options.importance[c])) {
      fail(fmt::format("importance of column {} is {}; expected a finite value >= 0", c,
                       options.importance[c]));
    }
  }
}

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
  if (q.size() % 2 == 1) packed[q.size() / 2] |= OddNibble(options.type);
  if (!nested) return q;
  auto* absmax = reinterpret_cast<float*>(storage.data() + plan.nested_absmax);
  q.nested.map = kSignedDynamicMap.data();
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

#include "backend/cuda/quantizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cuda/kernels.h"
#include "base/arena.h"
#include "quant/double_quant.h"
#include "quant/encode.h"
#include "quant/layout.h"
#include "quant/quantize_checks.h"

namespace qlora::cuda {
namespace {

EncodeRule RuleOf(QuantType type) {
  const EncodeTable& table = EncodeTableOf(type);
  EncodeRule rule = {};
  std::copy(table.thresholds.begin(), table.thresholds.end(), rule.thresholds);
  std::copy(table.codes.begin(), table.codes.end(), rule.codes);
  rule.zero_block_code = table.zero_block_code;
  return rule;
}

// A view whose pieces are in `storage`, as QuantizeInto lays them out.
struct Stored {
  QuantizedView view;
  std::byte* packed = nullptr;
  std::byte* scales = nullptr;
  std::byte* nested_absmax = nullptr;
};
Stored StoredIn(const ConstMatrixView& w, const QuantizeOptions& options, const Tables& tables,
                const MatrixView& storage) {
  Stored s = {.view = PlanQuantized(w.rows, w.cols, options)};
  QuantizedView& q = s.view;
  s.packed = static_cast<std::byte*>(storage.data);
  s.scales = s.packed + AlignUp(PackedBytes(q.size()));
  s.nested_absmax = s.scales + AlignUp(q.blocks() * ScaleBytes(q.scale_type));
  q.packed = reinterpret_cast<const std::uint8_t*>(s.packed);
  q.code = tables.codebook(options.type);
  q.scales = s.scales;
  if (q.scale_type == ScaleType::kDoubleBnb) {
    q.nested.map = tables.signed_map();
    q.nested.absmax = reinterpret_cast<const float*>(s.nested_absmax);
  }
  return s;
}

QuantizedView QuantizeOnHost(Context& context, Device& device, const ConstMatrixView& w,
                             const QuantizeOptions& options, Stored stored) {
  // The host makes the same bytes in the same layout, so one transfer moves codes, scales and
  // nested scales; only the offset is kept in the view itself.
  Arena arena(StorageBytes(w.rows, w.cols, options));
  const QuantizedView q = QuantizeInto(context, w, options, {arena.data(), arena.bytes()});
  device.memory().Upload(arena.data(), stored.packed, arena.bytes());
  stored.view.nested.offset = q.nested.offset;
  return stored.view;
}

// Values in parts of whole blocks, so that no two parts share a byte. Returns the scales.
MatrixView EncodeValues(Device& device, const ConstMatrixView& w, const Stored& stored,
                        const EncodeRule& rule, std::int64_t staged_bytes, Carver& carver) {
  const QuantizedView& q = stored.view;
  const auto element = static_cast<std::int64_t>(BytesOf(w.dtype, 1));
  // Whole blocks of an even size (IsForKernels) are whole bytes.
  const std::int64_t per_part =
      std::max<std::int64_t>(1, staged_bytes / element / q.block_size) * q.block_size;
  const MatrixView staged = carver.Matrix(w.dtype, 1, std::min(per_part, q.size()));
  const MatrixView scales = carver.Matrix(DType::kF32, 1, q.blocks());
  // The call of the plan: it counts the room and queues nothing.
  if (staged.data == nullptr) return scales;
  for (std::int64_t begin = 0; begin < q.size(); begin += per_part) {
    const std::int64_t count = std::min(per_part, q.size() - begin);
    device.memory().Upload(static_cast<const std::byte*>(w.data) + begin * element, staged.data,
                           count * element);
    EncodeBlocks(device.runtime().stream(),
                 {.x = staged.data,
                  .dtype = w.dtype,
                  .count = count,
                  .block_size = q.block_size,
                  .rule = rule,
                  .packed = reinterpret_cast<std::uint8_t*>(stored.packed) + begin / 2,
                  .scales = scales.Row<float>(0) + begin / q.block_size});
  }
  return scales;
}

bool IsForKernels(const ConstMatrixView& w, const QuantizeOptions& options) {
  const bool contiguous = w.rows == 1 || w.stride == w.cols;
  return contiguous && !options.scale_search && options.block_size % 2 == 0 && !w.empty();
}

}  // namespace

QuantizedView QuantizeOn(Context& context, Device& device, const Tables& tables,
                         const ConstMatrixView& w, const QuantizeOptions& options,
                         const MatrixView& storage, std::int64_t staged_bytes) {
  CheckQuantizeOptions(w.rows, w.cols, options);
  CheckDType(w, options.name);
  CheckStorage(
      {static_cast<const std::byte*>(storage.data), qlora::BytesOf(storage.dtype, storage.cols)},
      StorageBytes(w.rows, w.cols, options), options.name);
  Stored stored = StoredIn(w, options, tables, storage);
  if (!IsForKernels(w, options)) return QuantizeOnHost(context, device, w, options, stored);

  QuantizedView& q = stored.view;
  const EncodeRule rule = RuleOf(options.type);
  Carver plan;
  // A Carver without an arena: this call adds up the room.
  EncodeValues(device, w, stored, rule, staged_bytes, plan);
  Arena arena(plan.bytes(), device.memory());
  Carver carver(arena);
  const MatrixView scales = EncodeValues(device, w, stored, rule, staged_bytes, carver);
  // The scales come to the host, which looks for values that are not finite and adds up the mean.
  const std::vector<float> host = Download<float>(device.memory(), scales);
  if (!std::ranges::all_of(host, [](float scale) { return std::isfinite(scale); })) {
    ThrowNotFinite(context, w, options.name);
  }
  if (q.size() % 2 == 1) {
    std::uint8_t last = 0;
    std::byte* place = stored.packed + q.size() / 2;
    device.memory().Download(place, &last, 1);
    // The kernel clears the nibble behind an odd number of values; the host stores the code of 0
    // there, and stored weights must not differ by the device that made them.
    last |= OddNibble(options.type);
    device.memory().Upload(&last, place, 1);
  }
  if (q.scale_type == ScaleType::kF32) {
    device.memory().Upload(host.data(), stored.scales, host.size() * sizeof(float));
    return q;
  }
  // On the host, since the sum over all scales has one order there, in float64.
  q.nested.offset = MeanOf(host);
  EncodeScales(device.runtime().stream(),
               {.scales = scales.Row<float>(0),
                .count = q.blocks(),
                .block_size = q.nested.block_size,
                .mean = q.nested.offset,
                .map = tables.signed_map(),
                .codes = reinterpret_cast<std::uint8_t*>(stored.scales),
                .absmax = reinterpret_cast<float*>(stored.nested_absmax)});
  device.runtime().Synchronize();  // before the arena goes, whatever freeing it waits for
  return q;
}

}  // namespace qlora::cuda

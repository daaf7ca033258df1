#include "model/weight_placement.h"

#include "quant/layout.h"

namespace qlora {

template <typename T>
void WeightPlacement::Adopt(const T*& data, std::size_t bytes, WeightUse use) {
  const std::size_t before = carver_.bytes();
  // The backend carves memory for a copy, or reads the pages of the file, which count as mapped.
  const void* adopted = backend_.Adopt(data, bytes, use, carver_);
  if (carver_.bytes() == before) mapped_ += bytes;
  data = static_cast<const T*>(adopted);
}

WeightView WeightPlacement::Place(const WeightView& host, WeightUse use) {
  WeightView placed = host;
  if (!IsAligned(host)) use = WeightUse::kGeneration;
  ForEachPart(placed, [&](auto& data, std::size_t bytes) { Adopt(data, bytes, use); });
  return use == WeightUse::kGeneration ? Prepacked(placed) : placed;
}

WeightView WeightPlacement::PlaceRows(const WeightView& host) {
  const std::size_t mapped_before = mapped_;
  const WeightView placed = Place(host, WeightUse::kTraining);
  mapped_ = mapped_before;
  return placed;
}

WeightView WeightPlacement::PlaceFourBit(QuantizedView host) {
  const bool prepacks = generates() && backend_.PrepackedBytes(host) > 0;
  const std::size_t mapped_before = mapped_;
  // A prepacked copy takes the place of the values and scales.
  const WeightUse use = prepacks ? WeightUse::kTraining : use_;
  Adopt(host.packed, static_cast<std::size_t>(PackedBytes(host.size())), use);
  Adopt(host.scales, host.blocks() * ScaleBytes(host.scale_type), use);
  if (prepacks) mapped_ = mapped_before;
  Adopt(host.code, 16 * sizeof(float), WeightUse::kTraining);
  if (host.scale_type == ScaleType::kDoubleBnb) {
    const std::int64_t nested = BlockCount(host.blocks(), host.nested.block_size);
    Adopt(host.nested.absmax, nested * sizeof(float), WeightUse::kTraining);
    Adopt(host.nested.map, 256 * sizeof(float), WeightUse::kTraining);
  }
  return Prepacked(host);
}

WeightView WeightPlacement::Prepacked(WeightView placed) {
  const std::size_t bytes = generates() ? backend_.PrepackedBytes(placed) : 0;
  if (bytes == 0) return placed;
  const MatrixView copy = carver_.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes));
  auto* data = static_cast<std::byte*>(copy.data);
  if (read_) backend_.Prepack(placed, data);
  placed.prepacked = data;
  return placed;
}

}  // namespace qlora

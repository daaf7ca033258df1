// A and B once more, as operands of products.
#include "backend/packed_lora.h"

#include <algorithm>
#include <vector>

#include "adapter/lora.h"

namespace qlora {
namespace {

// Values as those of a matrix of F32 or BF16, to which they are rounded.
void UploadRounded(Memory& memory, const std::vector<float>& values, const MatrixView& m) {
  if (m.dtype == DType::kF32) {
    return memory.Upload(values.data(), m.data, values.size() * sizeof(float));
  }
  std::vector<BFloat16> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), ToBFloat16);
  memory.Upload(rounded.data(), m.data, rounded.size() * sizeof(BFloat16));
}

// The values of B (O, R) in the order of packed_lora.h.
std::vector<float> PackedB(const std::vector<float>& b, std::int64_t rank) {
  const std::int64_t rows = std::ssize(b) / rank;
  std::vector<float> packed(PackedRows(rows, rank) * kPackedRows);
  for (std::int64_t o = 0; o < rows; ++o) {
    float* panel = packed.data() + o / kPackedRows * rank * kPackedRows + o % kPackedRows;
    for (std::int64_t r = 0; r < rank; ++r) panel[r * kPackedRows] = b[o * rank + r];
  }
  return packed;
}

// Carves memory into the packed matrices of linears whose own have the type `wide`.
void LayoutPacked(Carver& carver, DType wide, DType operands,
                  std::vector<PerLinear<LoraLinear>>& layers) {
  MatrixView before;
  for (PerLinear<LoraLinear>& layer : layers) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      if (operands == wide) {
        lora.packed_a = lora.a;
      } else {
        lora.packed_a = lora.shares_a ? before : carver.Matrix(operands, lora.rank, lora.in);
      }
      lora.packed_b = carver.Matrix(operands, PackedRows(lora.out, lora.rank), kPackedRows);
      before = lora.packed_a;
    });
  }
}

}  // namespace

std::size_t LoraAdapter::PackedBytes(DType operands) const {
  std::vector<PerLinear<LoraLinear>> layers = layers_;
  Carver plan;
  LayoutPacked(plan, wide_, operands, layers);
  return plan.bytes();
}

void LoraAdapter::Pack(DType operands) {
  packed_ = Arena(PackedBytes(operands), *memory_);
  Carver carver(packed_);
  LayoutPacked(carver, wide_, operands, layers_);
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      UploadRounded(*memory_, PackedB(Download<float>(*memory_, lora.b), lora.rank), lora.packed_b);
      if (lora.packed_a.data == lora.a.data) return;
      UploadRounded(*memory_, Download<float>(*memory_, lora.a), lora.packed_a);
    });
  }
}

}  // namespace qlora

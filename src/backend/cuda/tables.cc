#include "backend/cuda/tables.h"

#include "backend/cuda/kernels.h"
#include "quant/dynamic_map.h"

namespace qlora::cuda {

Tables::Tables(Memory& memory) {
  // Called twice, to count and to carve: the room cannot disagree with the tables in it.
  const auto carve = [this](Carver& carver) {
    nf4_ = carver.Matrix(DType::kF32, 1, 16);
    fp4_ = carver.Matrix(DType::kF32, 1, 16);
    signed_map_ = carver.Matrix(DType::kF32, 1, 256);
    unsigned_map_ = carver.Matrix(DType::kF32, 1, 256);
    partial_sums_ = carver.Matrix(DType::kF64, 1, kMostPartialSums);
  };
  Carver plan;
  carve(plan);
  arena_ = Arena(plan.bytes(), memory);
  Carver carver(arena_);
  carve(carver);
  const auto upload = [&](const auto& values, const MatrixView& m) {
    Upload(memory, std::span<const float>(values), m);
  };
  // The tables of the CPU, uploaded: values that a kernel computed again could differ in the last
  // bit.
  upload(kNf4Codebook, nf4_);
  upload(kFp4Codebook, fp4_);
  upload(DynamicMap::Signed().values(), signed_map_);
  upload(DynamicMap::Unsigned().values(), unsigned_map_);
}

}  // namespace qlora::cuda

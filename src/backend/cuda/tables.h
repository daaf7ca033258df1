// Constant tables in device memory, and a little room for sums.
#ifndef QLORA_BACKEND_CUDA_TABLES_H_
#define QLORA_BACKEND_CUDA_TABLES_H_

#include "base/arena.h"
#include "base/memory.h"
#include "qlora/nf4.h"

namespace qlora::cuda {

class Tables {
 public:
  explicit Tables(Memory& memory);

  const float* codebook(QuantType type) const {
    return Floats(type == QuantType::kNf4 ? nf4_ : fp4_);
  }
  // The maps of 8-bit moments. The signed one also codes the scales of double quantization.
  const float* signed_map() const { return Floats(signed_map_); }
  const float* unsigned_map() const { return Floats(unsigned_map_); }
  // Room for kMostPartialSums of kernels.h.
  double* partial_sums() const { return static_cast<double*>(partial_sums_.data); }

 private:
  static const float* Floats(const MatrixView& m) { return static_cast<const float*>(m.data); }

  Arena arena_;
  MatrixView nf4_, fp4_, signed_map_, unsigned_map_, partial_sums_;
};

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_TABLES_H_

// The rows of a linear with its adapter merged in: W + scale * B A, in float32; with DoRA,
// each row brought to its magnitude.
#ifndef QLORA_CONVERT_MERGED_LINEAR_H_
#define QLORA_CONVERT_MERGED_LINEAR_H_

#include <cstdint>
#include <span>
#include <vector>

#include "adapter/lora.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {

class MergedLinear {
 public:
  // lora may be null or of rank 0: the weight alone. Both are in `memory`; data that the host
  // cannot read in place are copied.
  MergedLinear(Memory& memory, const WeightView& weight, const LoraLinear* lora);

  std::int64_t cols() const { return cols_; }

  // Reads out (rows.size(), cols): the named rows, in that order.
  void Read(Context& context, std::span<const std::int64_t> rows, float* out) const;
  // The same rows of the weight alone.
  void ReadWithoutAdapter(Context& context, std::span<const std::int64_t> rows, float* out) const;

 private:
  void ReadRow(std::int64_t row, float* out) const;

  HostWeight weight_;  // (O, I)
  std::int64_t cols_;
  std::vector<HostBytes> copies_;  // data that the views of the adapter point into
  std::int64_t rank_ = 0;          // R
  float scale_ = 1;
  ConstMatrixView a_;          // (R, I)
  ConstMatrixView b_;          // (O, R)
  ConstMatrixView magnitude_;  // (1, O), empty without DoRA
};

// Widens count values of F32, F16 or BF16 (aligned or not) as float32.
void WidenToFloat(const void* data, DType dtype, std::int64_t count, float* out);

}  // namespace qlora

#endif  // QLORA_CONVERT_MERGED_LINEAR_H_

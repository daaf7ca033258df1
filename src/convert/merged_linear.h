// The rows of a linear with its adapter merged in: W + scale * B A, in float32; with DoRA,
// each row brought to its magnitude.
#ifndef QLORA_CONVERT_MERGED_LINEAR_H_
#define QLORA_CONVERT_MERGED_LINEAR_H_

#include <cstdint>
#include <span>

#include "model/lora.h"
#include "model/weights.h"
#include "qlora/context.h"

namespace qlora {

class MergedLinear {
 public:
  // lora may be null or of rank 0: the weight alone.
  MergedLinear(const WeightView& weight, const LoraLinear* lora) : weight_(weight), lora_(lora) {}

  std::int64_t rows() const { return weight_.rows(); }
  std::int64_t cols() const { return weight_.cols(); }

  // out (rows.size(), cols): the named rows, in that order.
  void Read(Context& context, std::span<const std::int64_t> rows, float* out) const;

 private:
  void ReadRow(std::int64_t row, float* out) const;

  WeightView weight_;
  const LoraLinear* lora_;
};

// count values of F32, F16 or BF16 (aligned or not) as float32.
void WidenToFloat(const void* data, DType dtype, std::int64_t count, float* out);

}  // namespace qlora

#endif  // QLORA_CONVERT_MERGED_LINEAR_H_

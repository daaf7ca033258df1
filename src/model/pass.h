// The rows of one pass through the decoder.
#ifndef QLORA_MODEL_PASS_H_
#define QLORA_MODEL_PASS_H_

#include "model/decoder.h"

namespace qlora {

struct Decoder::Pass {
  std::int64_t rows = 0;                    // N
  std::span<const std::int32_t> positions;  // (N)
  std::int64_t max_position = 0;
  std::vector<AttentionSpan> spans;  // one per sequence
  DropoutState dropout;
  KvCache* cache = nullptr;  // null: keys and values of the batch itself
};

inline LinearGradient GradientOf(ConstMatrixView dy, const MatrixView& u, const LoraLinear* lora) {
  if (lora == nullptr || lora->rank == 0) return {dy, {}, {}, {}};
  return {dy, u, lora->da, lora->db};
}

}  // namespace qlora

#endif  // QLORA_MODEL_PASS_H_

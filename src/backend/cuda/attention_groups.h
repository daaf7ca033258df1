// Sequences of a packed batch, cut into groups that a library of attention computes one after the
// other. Attention stays inside a sequence, so the results are the same.
#ifndef QLORA_BACKEND_CUDA_ATTENTION_GROUPS_H_
#define QLORA_BACKEND_CUDA_ATTENTION_GROUPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.h"

namespace qlora::cuda {

// Most rows and sequences of a group.
struct GroupLimits {
  std::int64_t rows = 0;       // in all
  std::int64_t sequences = 0;  // a power of two
  // Only 1, 2, 4 ... sequences, for a library whose plans have a fixed number of them: a run then
  // makes few plans.
  bool powers_of_two = false;
};

// The spans that have rows.
std::vector<AttentionSpan> WithRows(std::span<const AttentionSpan> spans);
// As few groups of neighbours as the limits allow; none where a sequence has too many rows.
std::vector<std::span<const AttentionSpan>> GroupSpans(std::span<const AttentionSpan> spans,
                                                       const GroupLimits& limits);
std::int64_t RowsIn(std::span<const AttentionSpan> spans);

}  // namespace qlora::cuda

#endif  // QLORA_BACKEND_CUDA_ATTENTION_GROUPS_H_

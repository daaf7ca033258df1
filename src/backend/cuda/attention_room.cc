#include "backend/cuda/attention_room.h"

#include <algorithm>

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/workspace.h"

namespace qlora::cuda {

// Parts of decoding: for each of kMostParts parts of the keys an output of head_dim values and a
// log-sum-exp. The gradient has a value of each row and head instead, never at the same time.
std::int64_t AttentionRoom(const BackendLimits& limits) {
  if (limits.heads == 0 || limits.kv_heads == 0) return 0;
  const std::int64_t rows = std::max<std::int64_t>(
      kFewRows, CeilDiv(limits.heads / limits.kv_heads, kFewRows) * kFewRows);
  const std::int64_t decode =
      kMostParts * rows * limits.kv_heads * (limits.head_dim + 1) + kRowStep;
  return std::max(decode, limits.gradient_rows > 0 ? limits.rows * PaddedCols(limits.heads) : 0);
}

// Operands that cuDNN is given (device/cudnn_groups.cc), 4 bytes a value: for each row of the
// sequence the sum of dq with the stride of dq, and where heads share keys dk and dv with as many
// times the stride of dk as heads share a key; and a value of each head of all rows.
std::int64_t LibraryRoom(const BackendLimits& limits) {
  constexpr std::int64_t kPlan = std::int64_t{5} << 20;  // of a plan, and ends of pieces
  if (limits.heads == 0 || limits.gradient_length == 0) return 0;
  const std::int64_t group = limits.heads / limits.kv_heads;
  const std::int64_t dq = std::max(limits.heads * limits.head_dim, limits.qkv_stride);
  const std::int64_t dk = std::max(limits.kv_heads * limits.head_dim, limits.qkv_stride);
  const std::int64_t row = dq + (group > 1 ? 2 * group * dk : 0);
  return 4 * (limits.gradient_length * row + limits.gradient_rows * limits.heads) + kPlan;
}

}  // namespace qlora::cuda
